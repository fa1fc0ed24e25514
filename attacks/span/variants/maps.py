"""The span attack on networks of convolutions: feature maps first, then the images that have them.

The update of a convolution spans the patches of the maps that it was fed, the update of the next one tells those maps
from mixtures (`attacks.span.maps`). Maps are the proof and are returned as such; an image is what descent through the
layers in front of them makes of a map, and is returned where its map determines it.

Where no pair tells maps (`VectorVariant`: a bottleneck without ReLU between the two, as in a MobileNet, or shortcuts),
any single convolution behind a ReLU still gives up the vectors that it was fed, its patches or pixels of maps, as
vertices of a cone (`attacks.span.feature_space.cone`). They are returned without their places in the image.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.probing import evaluating
from attacks.span.feature_space.cone import cone_vectors
from attacks.span.maps.inversion import Inverted, MapTarget, PixelSpace, invert_maps
from attacks.span.maps.network import MapNetwork, VectorLayer, find_map_networks, find_vector_layers
from attacks.span.maps.search import MapCandidates, find_maps
from attacks.span.maps.update import MapUpdate, at_parameters_sent, patch_rank, read_update
from attacks.span.stages import Acceptance, Refusal, RoundsApart, Variant
from attacks.span.thresholds import CONE, MAP_INVERSION, MAP_KERNEL, MAP_SEARCH, constants_of
from attacks.update.spectrum import Spectrum, layer_update


@dataclass(frozen=True)
class MapVariant(Variant[MapUpdate, MapCandidates]):
    """Maps of private images from a pair of consecutive convolutions, and images from the maps.

    Only the first round whose update is not zero is used. Nothing has to be known; num_private is believed where the
    rank does not show it, pixels are kept in their range where pixel_mean is known, and public_images are decoys in the
    place of synthetic ones.
    """

    observation: Observation
    knowledge: Knowledge
    networks: tuple[MapNetwork, ...]

    def attack(self, generator: torch.Generator, progress: Progress) -> Reconstruction | RoundsApart:
        """Maps and images; where a pair does not show N, or gives no map, the vectors of single convolutions."""
        layers = vector_layers_of(self.observation)
        if layers and not self._update.single_step:
            found = VectorVariant(self.observation, layers).attack(generator, progress)
            return found if _has_features(found) else super().attack(generator, progress)
        found = super().attack(generator, progress)
        if layers and not _has_features(found):
            vectors = VectorVariant(self.observation, layers).attack(generator, progress)
            return vectors if _has_features(vectors) else found
        return found

    def read(self, generator: torch.Generator) -> MapUpdate:
        """The spans of the patches that both convolutions saw, and N where the rank shows it."""
        return self._update

    @cached_property
    def _update(self) -> MapUpdate:
        return read_update(self.observation, self.networks)

    @torch.no_grad()
    def search(self, evidence: MapUpdate, generator: torch.Generator, progress: Progress) -> MapCandidates:
        """Maps in the first convolution's span that the second one's holds."""
        decoys = evidence.network.maps(evidence.seen, self._decoys(evidence, generator))
        return find_maps(evidence, decoys, generator, progress)

    def accept(self, evidence: MapUpdate, candidates: MapCandidates, generator: torch.Generator) -> Acceptance:
        """The maps below the decoys' bound, no more of them than there are images, and the images that they determine;
        residual: ρ of an image's map."""
        if candidates.way is not None:
            evidence = evidence.on_the_way(candidates.way)
        most = evidence.count or self.knowledge.num_private or candidates.num_accepted
        accepted = min(candidates.num_accepted, most)
        facts = constants_of(MAP_KERNEL, MAP_SEARCH, MAP_INVERSION) | _facts(evidence, candidates, accepted)
        maps, residual = candidates.maps[:accepted], candidates.residual[:accepted]
        if not accepted:
            return Acceptance(maps, residual, _vetoed(evidence.network, candidates), 1.0, facts, features=maps)
        found = self._inverted(evidence, maps, generator)
        kept = found.trusted
        reason: str | None = None
        if not kept.all():
            reason = (
                f"{int((~kept).sum())} of {accepted} images are not returned: their maps were found, but neither they "
                "nor known images come back from maps (random weights, fewer entries than pixels, too large a network?)"
            )
        return Acceptance(
            images=found.images[kept],
            residual=residual[kept],
            reason=reason,
            facts=facts | {"map_misfit": float(found.residual.nanmedian())},
            held=found.images[~kept & found.residual.isfinite()],
            features=maps if evidence.single_step else self._at_sent(evidence, maps, found, generator),
        )

    def report(self, evidence: MapUpdate, acceptance: Acceptance) -> Reconstruction:
        """Images with ρ of their maps as residual, and the maps as features."""
        shape, maps = self.observation.input_shape, acceptance.features
        said = () if acceptance.reason is None else (acceptance.reason,)
        if evidence.count is None and evidence.refusal is None:
            number = ": the number of images is that of the maps that were accepted"
            if maps is None or not len(maps):
                number = f" or more than {evidence.network.most_images} images, as the rank shows no number of them"
            said = (*said, f"several local steps{number}")
        return Reconstruction(
            images=acceptance.images.reshape(-1, *shape),
            held=acceptance.held.reshape(-1, *shape),
            features=maps,
            residual=acceptance.residual,
            pixel_mean=self.knowledge.pixel_mean or (),
            num_inferred=evidence.count or (len(maps) if maps is not None else 0) or None,
            warnings=(*evidence.warnings, *said),
            facts=acceptance.facts,
        )

    def _inverted(self, evidence: MapUpdate, maps: Tensor, generator: torch.Generator) -> Inverted:
        """Images with these maps at the parameters at which they were found; black ones with residuals of NaN where
        maps of this network cannot be inverted, or not at the price that is paid for it."""
        network, seen = evidence.network, evidence.seen
        target = MapTarget(lambda images: network.maps(seen, images), maps, network.cost())
        space = self._pixels(maps)
        found = invert_maps(target, space.shape, space.bounds, generator)
        if found is None:
            nothing = maps.new_full((len(maps),), float("nan"))
            return Inverted(maps.new_zeros(len(maps), *space.shape), nothing, nothing)
        return found

    def _at_sent(self, evidence: MapUpdate, maps: Tensor, found: Inverted, generator: torch.Generator) -> Tensor:
        """The maps as they were before the steps that moved them."""
        decoys = self._decoys(evidence, generator)
        return at_parameters_sent(evidence, maps, found.images, found.trusted, decoys)

    def _decoys(self, evidence: MapUpdate, generator: torch.Generator) -> Tensor:
        """Images of nobody: public ones where they are known, else synthetic ones."""
        public, like = self.knowledge.public_images, evidence.holds.filters
        if public is not None:
            return public[: MAP_SEARCH.decoys].to(like)
        return self._pixels(like).decoys(MAP_SEARCH.decoys, generator).to(like)

    def _pixels(self, like: Tensor) -> PixelSpace:
        """The space of images; bounded where the mean that was subtracted is known."""
        known = self.knowledge
        bounds = None if known.pixel_mean is None else known.input_bounds(like)
        return PixelSpace(self.observation.input_shape, bounds)


def _vetoed(network: MapNetwork, candidates: MapCandidates) -> str:
    """Why none of the candidates is accepted."""
    if not math.isfinite(candidates.bound):
        first, second = network.first, network.second
        return f"nothing returned: {second!r} is fed the same whatever map {first!r} is fed (single pixels?)"
    lowest = float(candidates.residual[0]) if len(candidates.residual) else math.nan
    return f"nothing returned: the lowest ρ of a map is {lowest:.2g}, and has to be below {candidates.bound:.2g}"


def _facts(evidence: MapUpdate, candidates: MapCandidates, accepted: int) -> Facts:
    """What was measured on the way."""
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
        "kernel_dimensions": float(candidates.dimensions),
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
    """The pairs of consecutive convolutions that were trained and tell the maps of at least one image."""
    trained = set(observation.trainable)
    pairs = find_map_networks(observation.model, observation.input_shape)
    return tuple(pair for pair in pairs if {f"{pair.first}.weight", f"{pair.second}.weight"} <= trained)


@dataclass(frozen=True)
class VectorUpdate:
    """Layers whose updates show how many vectors they were fed. rows: of each, (R, D + 1), as `cone_vectors` takes
    them. count: N, which all of them show; None where there are none."""

    layers: tuple[VectorLayer, ...]
    rows: tuple[Tensor, ...]
    count: int | None
    most_images: int
    warnings: tuple[str, ...] = ()

    @property
    def refusal(self) -> Refusal | None:
        """Why there is nothing to search."""
        if self.count is not None:
            return None
        return Refusal(
            "nothing returned: no convolution behind a ReLU has an update whose rank is that of whole images, as after "
            f"one step of SGD on at most {self.most_images} images ('ntk' needs no such rank)"
        )


@dataclass(frozen=True)
class VectorVariant(Variant[VectorUpdate, tuple[Tensor, ...]]):
    """Private vectors of single convolutions behind a ReLU after one step of SGD, without their places in an image.

    Only the first round whose update is not zero is used. Nothing has to be known. The result holds those of the layer
    that gave up the largest share; where it has no bias, their sums are 1.
    """

    observation: Observation
    layers: tuple[VectorLayer, ...]

    def read(self, generator: torch.Generator) -> VectorUpdate:
        """The rows of every layer whose rank is that of whole images, and the same number as most of them."""
        observation, warnings = self.observation.one_round()
        delta = observation.delta()
        _, final = observation.pairs[0]
        shown: dict[int, list[tuple[VectorLayer, Tensor]]] = {}
        for layer in self.layers:
            update = layer_update(delta, layer.name)
            spectrum = Spectrum.of(update)
            rank = patch_rank(spectrum, final[f"{layer.name}.weight"].to(update.device, torch.float32))
            # signals that depend on one another leave sums of vectors, nonnegative ones too: a rank that is not whole
            if 0 < rank < layer.most_rank and rank % layer.positions == 0:
                rows = spectrum.vectors[:rank]
                if update.shape[1] == layer.module.weight[0].numel():
                    rows = torch.cat([rows, rows.sum(1, keepdim=True)], 1)
                shown.setdefault(rank // layer.positions, []).append((layer, rows))
        most = max((layer.most_rank - 1) // layer.positions for layer in self.layers)
        if not shown:
            return VectorUpdate((), (), None, most, warnings)
        count = max(shown, key=lambda number: len(shown[number]))
        layers, spans = zip(*shown[count], strict=True)
        return VectorUpdate(layers, spans, count, most, warnings)

    def search(self, evidence: VectorUpdate, generator: torch.Generator, progress: Progress) -> tuple[Tensor, ...]:
        """The vectors of every layer."""
        found = list[Tensor]()
        for done, rows in enumerate(evidence.rows):
            progress(done, len(evidence.rows), math.nan)
            found.append(cone_vectors(rows, generator))
        return tuple(found)

    def accept(self, evidence: VectorUpdate, candidates: tuple[Tensor, ...], generator: torch.Generator) -> Acceptance:
        """The vectors of the layer that gave up the largest share, the more of them the better."""
        shares = [(len(one) / len(rows), len(one)) for one, rows in zip(candidates, evidence.rows, strict=True)]
        best = max(range(len(shares)), key=shares.__getitem__)
        layer, vectors = evidence.layers[best], candidates[best]
        counts = {
            f"vectors_{one.name}": float(len(part)) for one, part in zip(evidence.layers, candidates, strict=True)
        }
        facts: Facts = {**constants_of(CONE), **counts, "layer": layer.name, "rank": float(len(evidence.rows[best]))}
        nothing = vectors.new_zeros(0)
        said = f"{len(vectors)} of {len(evidence.rows[best])} vectors that {layer.name!r} was fed are certified"
        reason = f"no image is returned: {said}, but not where in an image they belong"
        return Acceptance(nothing, nothing, reason, facts=facts, features=vectors.float())

    def report(self, evidence: VectorUpdate, acceptance: Acceptance) -> Reconstruction:
        """No images, and the vectors as features."""
        return Reconstruction(
            images=torch.zeros(0, *self.observation.input_shape),
            residual=torch.zeros(0),
            features=acceptance.features,
            num_inferred=evidence.count,
            warnings=(*evidence.warnings, acceptance.reason or ""),
            facts=acceptance.facts,
        )


def _has_features(found: Reconstruction | RoundsApart) -> bool:
    """Whether a result has maps or vectors."""
    return isinstance(found, Reconstruction) and found.features is not None and len(found.features) > 0


def vector_layers_of(observation: Observation) -> tuple[VectorLayer, ...]:
    """The convolutions behind a ReLU that were trained and may tell the vectors they are fed."""
    trained = set(observation.trainable)
    with evaluating(observation.model), torch.no_grad():
        found = find_vector_layers(observation.model, observation.input_shape)
    return tuple(layer for layer in found if f"{layer.name}.weight" in trained)
