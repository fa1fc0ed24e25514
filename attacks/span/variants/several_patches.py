"""The span attack on vision transformers whose client has several images, after one step of SGD.

The update of the patch embedding spans the patches of all images, which says which images are possible: those whose
patches lie in that span. A later layer, as the second one of the first block's MLP, tells the private ones among them,
as its update spans what they made there (`attacks.span.maps`). A local minimum of that test is mostly a private image
with some of its patches wrong, so that an image counts only where rounding alone is left.

**The last image** needs no search. Once the others are known, their part of every update is linear in a few unknowns:
what the loss asked of each output,

    δ_np = Σ_k g_nk ∂f_k(x_n) / ∂z_np,

z_np the token at position p. With C the column space of what their patches leave of ΔW, which δ of the last image
alone spans, ΔE_p − Σ_n δ_np lies in C for every p: a least squares in g. The update without them is that of a client of
one, which gives its image in closed form (`attacks.span.variants.patch_embedding`).
"""

import math
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.observation import Observation
from attacks.interface.torch_tools import cast_state
from attacks.networks.probing import find_output_layer, run_network
from attacks.networks.vision_transformer import PatchEmbedding
from attacks.span.maps.inversion import PixelSpace
from attacks.span.maps.network import MapNetwork
from attacks.span.maps.patches import geometry
from attacks.span.maps.search import Aim, MapCandidates, find_maps, lowered, with_others
from attacks.span.maps.update import MapUpdate, read_update
from attacks.span.stages import Acceptance, Refusal, Variant
from attacks.span.thresholds import MAP_KERNEL, MAP_SEARCH, SEVERAL_PATCHES, constants_of
from attacks.span.variants.maps import map_networks_of


@dataclass(frozen=True)
class PatchSignals:
    """The updates of a patch embedding and of learned positions, without weight decay, in float64.

    weight: ΔW (D, n).
    positions: ΔE (P, D), the sum over images of their signals δ_np.
    """

    weight: Tensor
    positions: Tensor


@dataclass(frozen=True)
class SeveralUpdate:
    """What two layers' updates show of the images: the span of their patches, and of what they made later.

    maps: of the embedding, whose maps are the images, and of the later layer.
    entries: of the space of images that the embedding allows, all written down.
    """

    maps: MapUpdate
    entries: int

    @property
    def refusal(self) -> Refusal | None:
        """Why there is nothing to search."""
        seen = (self.maps.count or 0) * self.maps.network.tested_positions
        if not 0 < self.maps.ranks[1] <= seen:
            return Refusal(
                "nothing returned: the update of the patch embedding is not that of one step of SGD on at most "
                f"{self.maps.network.most_images} images, of which alone several are told apart"
            )
        if self.entries > SEVERAL_PATCHES.most_entries:
            return Refusal(
                f"nothing returned: the update shows {self.maps.count} images, and the space of possible ones takes "
                f"{self.entries:.1e} numbers, above {SEVERAL_PATCHES.most_entries:.1e}"
            )
        return None


@dataclass(frozen=True)
class SeveralVariant(Variant[SeveralUpdate, MapCandidates]):
    """Images whose patches lie in the span of the embedding's update, and that a later layer's update holds.

    networks: pairs of layers, the first of which is the embedding.
    signals: None where no positions are learned; the last image is then searched as the others are.
    """

    observation: Observation
    embedding: PatchEmbedding
    networks: tuple[MapNetwork, ...]
    signals: PatchSignals | None = None

    def read(self, generator: torch.Generator) -> SeveralUpdate:
        """Read the spans of the patches, and of what the later layer saw of them."""
        maps = read_update(self.observation, self.networks)
        return SeveralUpdate(maps, maps.network.positions * maps.ranks[0] * math.prod(maps.network.shape))

    def search(self, evidence: SeveralUpdate, generator: torch.Generator, progress: Progress) -> MapCandidates:
        """Find what the embedding is fed at the minima of ρ; the last image in closed form, if it alone is missing."""
        maps = evidence.maps
        assert maps.count is not None
        decoys = PixelSpace(self.observation.input_shape, None).decoys(MAP_SEARCH.decoys, generator)
        with torch.no_grad():
            fed = maps.network.maps(maps.seen, decoys.to(maps.holds.filters))
            wanted = maps.count if self.signals is None else max(1, maps.count - 1)
            aim = Aim(SEVERAL_PATCHES.accepting_share, SEVERAL_PATCHES.most, SEVERAL_PATCHES.rounds, wanted)
            found = find_maps(maps, fed, generator, progress, aim)
            for _ in range(SEVERAL_PATCHES.repairs):
                if found.num_accepted >= wanted:
                    break
                accepted = found.maps[: found.num_accepted]
                penalty = partial(self._alike, maps, accepted)
                lower = lowered(maps, found, self._starts(maps, found, generator), penalty, progress)
                others = self._of_others(maps, lower, accepted)
                found = with_others(maps, found, others[: maps.count + MAP_SEARCH.polished_besides])
            if self.signals is None or found.num_accepted != maps.count - 1:
                return found
            return with_others(maps, found, self._last(self.signals, maps, found.maps[: found.num_accepted]))

    def accept(
        self, evidence: SeveralUpdate, candidates: MapCandidates, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept the images below the bound, no more of them than there are; residual: their ρ."""
        maps = evidence.maps
        assert maps.count is not None
        accepted, residual = min(candidates.num_accepted, maps.count), candidates.residual
        next_one = float(residual[accepted]) if len(residual) > accepted else math.nan
        facts: Facts = constants_of(MAP_KERNEL, MAP_SEARCH, SEVERAL_PATCHES) | {
            "tested_by": maps.network.second,
            "rho_accepted": float(residual[:accepted].max()) if accepted else math.nan,
            "rho_next": next_one,
            "rho_bound": candidates.bound,
        }
        reason = None
        if accepted < maps.count:
            reason = (
                f"{maps.count - accepted} of {maps.count} images were not found: the lowest ρ of any other is "
                f"{next_one:.2g}, and has to be below {candidates.bound:.2g}"
            )
        images = self._images(maps, candidates.maps[:accepted])
        others = self._of_others(maps, candidates.maps[accepted:], candidates.maps[:accepted])
        held = self._images(maps, others[: maps.count - accepted])
        return Acceptance(images, residual[:accepted], reason, facts=facts, held=held)

    def report(self, evidence: SeveralUpdate, acceptance: Acceptance) -> Reconstruction:
        """Return the images, with their ρ as residual."""
        maps = evidence.maps
        return acceptance.reported(self.observation.input_shape, maps.warnings, num_inferred=maps.count)

    @cached_property
    def _round(self) -> Observation:
        return self.observation.one_round()[0]

    def _images(self, maps: MapUpdate, fed: Tensor) -> Tensor:
        """Return the images (M, C, H, W) of which the embedding is fed `fed` (M, C, H, W)."""
        patches, shape = _patches(maps, fed).mT.double().cpu(), self.observation.input_shape
        return torch.cat([self.embedding.image(one, shape) for one in patches]).to(fed) if len(fed) else fed

    def _alike(self, maps: MapUpdate, accepted: Tensor, candidates: Tensor) -> Tensor:
        """Compute the share (M,) of the patches of candidates (M, C, H, W) that are those of an accepted one (A, C, H,
        W), all but a Gaussian of their distance: most random points end at the images of the largest signals."""
        known, others = _patches(maps, accepted), _patches(maps, candidates)
        apart = (others[:, None] - known[None]).square().sum(2) / known.square().sum(1)
        return torch.exp(-apart / SEVERAL_PATCHES.near**2).mean(2).sum(1)

    def _of_others(self, maps: MapUpdate, candidates: Tensor, accepted: Tensor) -> Tensor:
        """Return the candidates (M, C, H, W) without those that have most patches of an accepted one (A, C, H, W)."""
        known, others = _patches(maps, accepted), _patches(maps, candidates)
        apart = (others[:, None] - known[None]).norm(dim=2) / known.norm(dim=1)
        same = (apart < SEVERAL_PATCHES.same).float().mean(2) > 0.5
        return candidates[~same.any(1)]

    def _starts(self, maps: MapUpdate, found: MapCandidates, generator: torch.Generator) -> Tensor:
        """Draw points of the kernel (S, C, H, W) to descend from: of random patches, and copies of the best candidates
        of other images that keep those whose part of the later layer's input lies in its span as well as most."""
        points = torch.randn(MAP_SEARCH.starts, len(found.basis), generator=generator).to(found.basis)
        drawn = (points @ found.basis).view(-1, *maps.network.shape)
        drawn = drawn * (found.maps.flatten(1).norm(dim=1).mean() / drawn.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)
        first = found.num_accepted
        others = self._of_others(maps, found.maps[first:], found.maps[:first])[: SEVERAL_PATCHES.repaired]
        if not len(others):
            return drawn
        fed = maps.network.between(maps.seen, others)
        left = 1 - maps.tests.coefficients(fed).square().sum(1) / fed.square().sum(1)
        shares = left.flatten(1)[:, self._tokens(maps, others[:1])]
        wrong = shares > SEVERAL_PATCHES.wrong * shares.median(1, keepdim=True).values
        where = _put_back(maps, wrong[:, None].to(others).expand(-1, maps.holds.filters[0].numel(), -1)) > 0
        copied = torch.arange(len(drawn), device=drawn.device) % len(others)
        return torch.where(where[copied], drawn, others[copied])

    def _tokens(self, maps: MapUpdate, image: Tensor) -> Tensor:
        """Find the later position that each patch moves most, (P,), of what the embedding is fed (1, C, H, W)."""
        patches = _patches(maps, image)
        changed = patches + torch.eye(patches.shape[2]).to(image)[:, None] * patches.std()
        fed = maps.network.between(maps.seen, torch.cat([image, _put_back(maps, changed)])).flatten(2)
        return (fed[1:] - fed[:1]).square().sum(1).argmax(1)

    def _last(self, signals: PatchSignals, maps: MapUpdate, found: Tensor) -> Tensor:
        """Find what the embedding is fed of the one image missing beside those found (M, C, H, W): (1, C, H, W)."""
        patches = _patches(maps, found).mT.to(signals.weight)
        known = torch.linalg.qr(patches.flatten(0, 1).T)[0]
        left = signals.weight - signals.weight @ known @ known.T
        own = torch.linalg.svd(left, full_matrices=False)[0][:, : len(signals.positions)]

        def outside(rows: Tensor) -> Tensor:
            return rows - rows @ own @ own.T

        slopes = torch.stack([self._slopes(image) for image in self._images(maps, found)]).to(signals.weight)
        unknowns = outside(slopes).flatten(2).flatten(0, 1).T
        asked = torch.linalg.lstsq(unknowns, outside(signals.positions).flatten()[:, None]).solution
        parts = (asked.view(*slopes.shape[:2], 1, 1) * slopes).sum(1)
        weight = signals.weight - torch.einsum("apd,apn->dn", parts, patches)
        last = torch.linalg.lstsq((signals.positions - parts.sum(0)).T, weight).solution
        return _put_back(maps, last.T[None]).to(found)

    def _slopes(self, image: Tensor) -> Tensor:
        """Return ∂f/∂z (B, P, D) of an image (C, H, W), f along each direction in which its outputs can be asked."""
        own, model, sent = self.embedding, self.observation.model, self._round.initial
        assert own.positions is not None and own.rows is not None
        state = cast_state(sent, sent[own.weight].device, torch.float64)
        positions = state[own.positions].requires_grad_()
        with torch.enable_grad():
            outputs = run_network(model, {**state, own.positions: positions}, image[None].to(positions)).flatten()
            asked = [outputs @ direction for direction in self._asked(outputs)]
            slopes = [torch.autograd.grad(one, positions, retain_graph=True)[0] for one in asked]
        return torch.stack(slopes).reshape(len(slopes), -1, len(sent[own.weight]))[:, own.rows]

    def _asked(self, outputs: Tensor) -> Tensor:
        """Return directions (B, K) in which the losses' derivatives by the outputs (K,) lie: those in which the last
        layer moved, where it is linear, else all."""
        layer = find_output_layer(self.observation.model, self.observation.input_shape)
        if layer is None or f"{layer}.weight" not in self.observation.trainable:
            return torch.eye(len(outputs), dtype=outputs.dtype, device=outputs.device)
        update = self._round.delta()[f"{layer}.weight"].to(outputs)
        left, values, _ = torch.linalg.svd(update, full_matrices=False)
        return left[:, values > SEVERAL_PATCHES.least_asked * values[0]].T


def _patches(maps: MapUpdate, fed: Tensor) -> Tensor:
    """Return what the embedding multiplies of what it is fed (M, C, H, W): (M, n, P)."""
    return F.unfold(fed, *geometry(maps.network.convolution(maps.network.first)))


def _put_back(maps: MapUpdate, patches: Tensor) -> Tensor:
    """Return what the embedding is fed (M, C, H, W) of patches (M, n, P), which do not overlap."""
    return F.fold(patches, maps.network.shape[1:], *geometry(maps.network.convolution(maps.network.first)))


def networks_of(observation: Observation, embedding: PatchEmbedding) -> tuple[MapNetwork, ...]:
    """Find the pairs whose first layer is a patch embedding by convolution, and both of which were trained."""
    return tuple(pair for pair in map_networks_of(observation) if f"{pair.first}.weight" == embedding.weight)
