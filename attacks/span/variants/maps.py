"""The span attack on networks of convolutions: feature maps first, then the images that have them.

The update of a convolution spans the patches of the maps that it was fed, that of a later layer tells those maps
from mixtures (`attacks.span.maps`). Maps are the proof and are returned as such; an image is what descent through the
layers in front of them makes of a map, and is returned where its map determines it, else held.

Where no pair tells maps, single convolutions still give up what they were fed (`attacks.span.variants.vectors`).
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.span.maps.inversion import Inverted, MapTarget, PixelSpace, invert_maps
from attacks.span.maps.network import MapNetwork, find_map_networks
from attacks.span.maps.search import MapCandidates, find_maps, rho
from attacks.span.maps.update import MapUpdate, at_parameters_sent, moved_pairs, read_update
from attacks.span.stages import Acceptance, Variant
from attacks.span.thresholds import MAP_INVERSION, MAP_KERNEL, MAP_SEARCH, constants_of
from attacks.span.variants.vectors import VectorVariant, vector_layers_of


@dataclass(frozen=True)
class MapVariant(Variant[MapUpdate, MapCandidates]):
    """Maps of private images from a convolution and a later layer that tests them, and images from the maps.

    Only the first round whose update is not zero is used. Nothing has to be known; num_private is believed where the
    rank does not show it, pixels are kept in their range where pixel_mean is known, and public_images are decoys in the
    place of synthetic ones.
    """

    observation: Observation
    knowledge: Knowledge
    networks: tuple[MapNetwork, ...]

    def attack(self, generator: torch.Generator, progress: Progress) -> Reconstruction:
        """Find maps and images; where the first pair misses maps, of the pair with the fewest unknowns, if it gives
        more maps and no fewer images; where a pair does not show N, or gives no map, find vectors of single layers."""
        layers = vector_layers_of(self.observation)
        vectors = VectorVariant(self.observation, self.knowledge, layers)
        if layers and not self._update.whole:
            found = vectors.attack(generator, progress)
            return found if found.num_features else super().attack(generator, progress)
        found = super().attack(generator, progress)
        if self._update.count is not None and found.num_features < self._update.count:
            simpler = self._simplest(self._update.count)
            if simpler != self._update.network:
                other = replace(self, networks=(simpler,)).attack(generator, progress)
                more = other.num_features > found.num_features and len(other.images) >= len(found.images)
                found = other if more else found
        if layers and not found.num_features:
            instead = vectors.attack(generator, progress)
            return instead if instead.num_features else found
        return found

    def _simplest(self, count: int) -> MapNetwork:
        """Return the pair with the fewest unknowns that can test as many images, of equals the one that is used."""
        pairs = moved_pairs(self.networks, self.observation.one_round()[0])
        able = [self._update.network, *(pair for pair in pairs if pair.spare(count) > 0)]
        return min(able, key=lambda pair: pair.unknowns(count))

    def read(self, generator: torch.Generator) -> MapUpdate:
        """Read the spans of the patches that both layers saw, and N where the rank shows it."""
        return self._update

    @cached_property
    def _update(self) -> MapUpdate:
        return read_update(self.observation, self.networks)

    @torch.no_grad()
    def search(self, evidence: MapUpdate, generator: torch.Generator, progress: Progress) -> MapCandidates:
        """Find maps in the first convolution's span that the second one's holds."""
        decoys = evidence.network.maps(evidence.seen, self._decoys(evidence, generator))
        return find_maps(evidence, decoys, generator, progress)

    def accept(
        self, evidence: MapUpdate, candidates: MapCandidates, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept the maps below the decoys' bound, no more of them than there are images, and the images that they
        determine; hold the likeliest ones where they do not. residual: ρ of an image's map."""
        if candidates.way is not None:
            evidence = evidence.on_the_way(candidates.way)
        most = evidence.count or self.knowledge.num_private or candidates.num_accepted
        accepted = min(candidates.num_accepted, most) if _tells(evidence, candidates) else 0
        facts = constants_of(MAP_KERNEL, MAP_SEARCH, MAP_INVERSION) | _facts(evidence, candidates, accepted)
        maps, residual = candidates.maps[:accepted], candidates.residual[:accepted]
        if not accepted:
            return Acceptance(maps, residual, _vetoed(evidence, candidates), facts=facts, features=maps)
        found = self._inverted(evidence, maps, generator, progress)
        explained = _explained(evidence, candidates, found.images)
        kept, reason, at_sent = found.trusted & explained, None, maps
        if not evidence.single_step:
            decoys = self._decoys(evidence, generator)
            at_sent = at_parameters_sent(evidence, maps, found.images, kept, decoys)
        if not kept.all():
            why = "neither they nor known images come back from maps (random weights, too large a network?)"
            if maps[0].numel() < math.prod(self.observation.input_shape):
                why = f"they have fewer entries than pixels: what is held after {MAP_INVERSION.few_descent.steps} steps"
                why += " is the likeliest image that has them, and others have the same"
            elif (found.trusted & ~explained).any():
                why = "images that come back have another one (a wrong mean?), or twice them no other (no biases?)"
            reason = f"{int((~kept).sum())} of {accepted} images are not returned: their maps were found, but {why}"
        return Acceptance(
            images=found.images[kept],
            residual=residual[kept],
            reason=reason,
            facts=facts | {"map_misfit": float(found.residual.nanmedian())},
            held=found.images[~kept & found.residual.isfinite()],
            features=at_sent,
        )

    def report(self, evidence: MapUpdate, acceptance: Acceptance) -> Reconstruction:
        """Return images with ρ of their maps as residual, and the maps as features."""
        found = acceptance.reported(
            self.observation.input_shape, evidence.warnings, pixel_mean=self.knowledge.pixel_mean or ()
        )
        number, said = _number(evidence, found.num_features)
        return replace(found, num_inferred=number, warnings=(*found.warnings, *said))

    def _inverted(self, evidence: MapUpdate, maps: Tensor, generator: torch.Generator, progress: Progress) -> Inverted:
        """Find images with these maps at the parameters at which they were found; black ones with residuals of NaN
        where maps of this network cannot be inverted, or not at the price that is paid for it."""
        network, seen = evidence.network, evidence.seen
        target = MapTarget(lambda images: network.maps(seen, images), maps, network.cost())
        found = invert_maps(target, self._pixels(maps), generator, progress)
        nothing = maps.new_full((len(maps),), float("nan"))
        return found or Inverted(maps.new_zeros(len(maps), *self.observation.input_shape), nothing, nothing)

    def _decoys(self, evidence: MapUpdate, generator: torch.Generator) -> Tensor:
        """Return images of nobody: public ones where they are known, else synthetic ones."""
        public, like = self.knowledge.public_images, evidence.holds.filters
        if public is not None:
            return public[: MAP_SEARCH.decoys].to(like)
        return self._pixels(like).decoys(MAP_SEARCH.decoys, generator).to(like)

    def _pixels(self, like: Tensor) -> PixelSpace:
        """Return the space of images; bounded where the mean that was subtracted is known."""
        known = self.knowledge
        bounds = None if known.pixel_mean is None else known.input_bounds(like)
        return PixelSpace(self.observation.input_shape, bounds)


def _number(evidence: MapUpdate, found: int) -> tuple[int | None, tuple[str, ...]]:
    """Return (N as far as the rank and the number of maps found tell it, what to say of it)."""
    if evidence.refusal is not None:
        return found or None, ()
    if evidence.count is not None:
        # several steps add as many patches again, where all stand above rounding and no BatchNorm counts steps
        if not 0 < found < evidence.count or evidence.count % found:
            return evidence.count, ()
        return None, (f"the rank is that of {evidence.count} images, or of {found} in {evidence.count // found} steps",)
    if evidence.batch is not None:
        return None, (f"several local steps on {evidence.batch} images each, the same or others",)
    if found:
        return found, ("several local steps: the number of images is that of the maps that were accepted",)
    most = evidence.network.most_images
    return None, (f"several local steps or more images than {most}, as the rank shows no number of them",)


def _tells(evidence: MapUpdate, candidates: MapCandidates) -> bool:
    """Return whether the second layer has equations enough for the directions in which a map may move. After several
    steps both ranks are higher than those of the images' patches, and with few equations a map of nobody solves all."""
    enough = MAP_SEARCH.equations * len(candidates.basis)
    return evidence.single_step or evidence.network.equations(evidence.ranks[1]) >= enough


@torch.no_grad()
def _explained(evidence: MapUpdate, candidates: MapCandidates, images: Tensor) -> Tensor:
    """Return whose own maps, of images (M, C, H, W), the second layer tells from what is not private, and from those of
    images twice as large, (M,) bool. Others were kept in a wrong range, or the network is not as it was trained, as
    where statistics were averaged over time; or it sees no size, as without biases. Decoys show none of these."""
    network, seen = evidence.network, evidence.seen
    own, twice = (rho(evidence, network.maps(seen, scale * images).flatten(1)) for scale in (1, 2))
    return (own < candidates.bound / MAP_SEARCH.accepting_share) & (twice > candidates.bound)


def _vetoed(evidence: MapUpdate, candidates: MapCandidates) -> str:
    """Say why none of the candidates is accepted."""
    first, second = evidence.network.first, evidence.network.second
    if not _tells(evidence, candidates):
        asked = f"{evidence.network.equations(evidence.ranks[1])} equations for {len(candidates.basis)} unknowns"
        return (
            f"nothing returned: {second!r} has {asked} of a map of {first!r}, {MAP_SEARCH.equations:g} for each needed"
        )
    if not math.isfinite(candidates.bound):
        return f"nothing returned: {second!r} is fed the same whatever map {first!r} is fed (single pixels?)"
    if evidence.batch is not None and not len(candidates.maps):
        return f"nothing returned: no maps of a batch of {evidence.batch} were found that explain all of {second!r}"
    lowest = float(candidates.residual[0]) if len(candidates.residual) else math.nan
    return f"nothing returned: the lowest ρ of a map is {lowest:.2g}, and has to be below {candidates.bound:.2g}"


def _facts(evidence: MapUpdate, candidates: MapCandidates, accepted: int) -> Facts:
    """Return what was measured on the way."""
    residual = candidates.residual
    next_one = float(residual[accepted]) if len(residual) > accepted else float("nan")
    return {
        "layer": evidence.network.first,
        "tested_by": evidence.network.second,
        "positions": float(evidence.network.positions),
        "rank": float(evidence.ranks[0]),
        "rank_of_test": float(evidence.ranks[1]),
        "training_mode": float(evidence.training_mode),
        "single_step": float(evidence.single_step),
        "kernel_dimensions": float(len(candidates.basis)),
        "kernel_eigenvalue": candidates.eigenvalue,
        "maps_accepted": float(accepted),
        "rho_accepted": float(residual[:accepted].max()) if accepted else float("nan"),
        "rho_next": next_one,
        "rho_decoys": float(candidates.decoys.median()),
        "rho_bound": candidates.bound,
        "decay_factor": evidence.decay,
        "way": 0.0 if candidates.way is None else candidates.way,
    }


def map_networks_of(observation: Observation) -> tuple[MapNetwork, ...]:
    """Find the pairs of layers that moved and tell the maps of at least one image."""
    pairs = find_map_networks(observation.model, observation.input_shape)
    return tuple(pair for pair in pairs if {f"{pair.first}.weight", f"{pair.second}.weight"} <= observation.moved)
