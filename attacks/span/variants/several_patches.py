"""The span attack on vision transformers whose client has several images, after one step of SGD.

Every token passes by itself through the two linear layers behind the first attention. To them, all tokens of all images
are what images are to an MLP, and come back as those do (`attacks.span.variants.pixels`): exactly, and without saying
where they belong. `attacks.span.tokens` finds their places and patches by linear algebra, and which of them make an
image. Patches whose tokens did not come back are found last, from the update of the second layer: what a private image
feeds it lies in its row space, so that the share ρ that lies outside is rounding.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.base import Facts, Progress, Reconstruction
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.torch_tools import cast_state
from attacks.networks.token_layers import TokenLayers, find_token_layers
from attacks.networks.vision_transformer import PatchEmbedding
from attacks.span.evidence.pixel_evidence import PixelEvidence
from attacks.span.maps.inversion import PixelSpace
from attacks.span.maps.search import minimize
from attacks.span.maps.update import rounding_of
from attacks.span.search.candidates import SearchOptions
from attacks.span.search.descent import beside, first_of_near
from attacks.span.stages import Acceptance, Refusal, Variant
from attacks.span.thresholds import TOKENS, constants_of
from attacks.span.tokens import NONE, TokenImages
from attacks.span.variants.pixels import PixelVariant
from attacks.update.spectrum import decay_factor, without_decay


@dataclass(frozen=True)
class TokenUpdate:
    """What the updates of a patch embedding and of the layers behind it show of a client's tokens.

    images: how images follow from their patches.
    tested: (R, W), orthonormal rows of the second layer's update.
    count: N, None where the updates are not those of one step on few enough images.
    most: the largest number of images that the layers tell.
    warnings: on other rounds.
    """

    images: TokenImages
    tested: Tensor
    count: int | None
    most: int
    warnings: tuple[str, ...] = ()

    @property
    def refusal(self) -> Refusal | None:
        """Why there is nothing to search."""
        if self.count is not None:
            return None
        return Refusal(
            "nothing returned: the update of the patch embedding is not that of one step of SGD on at most "
            f"{self.most} images, of which alone several are told apart"
        )

    def rho(self, points: Tensor) -> Tensor:
        """Compute ρ (M,) of images by the coordinates of their patches (M, P, k): the share of what the second layer is
        fed that lies outside the rows of its update."""
        fed = self.images.layers.run(self.images.state, self.images.images(points)).second
        return 1 - (fed @ self.tested.T).square().sum((1, 2)) / fed.square().sum((1, 2))


@dataclass(frozen=True)
class TokenCandidates:
    """Images by the coordinates of their patches, best first.

    points: (M, P, k).
    residual: (M,), their ρ.
    bound: ρ below which an image is accepted.
    tokens: how many the first layer was found to be fed.
    placed: how many of them have a certain place.
    """

    points: Tensor
    residual: Tensor
    bound: float
    tokens: int
    placed: int


@dataclass(frozen=True)
class TokenVariant(PixelVariant):
    """The attack on what the two layers are fed, as if it were images.

    number: of tokens.
    """

    number: int

    def read(self, generator: torch.Generator) -> PixelEvidence:
        """Read the row spaces of the two layers' updates; for all tokens where the first one alone shows no number, as
        where the weakest of many tokens stand just above rounding."""
        read = super().read(generator)
        if not read.like_adam:
            return read
        return PixelEvidence.of(read.defense, read.spectrum, self.number, None, self.has_zeros)


@dataclass(frozen=True)
class SeveralVariant(Variant[TokenUpdate, TokenCandidates]):
    """Images of which all tokens, put together, are what the layers were fed."""

    observation: Observation
    embedding: PatchEmbedding
    layers: TokenLayers

    def read(self, generator: torch.Generator) -> TokenUpdate:
        """Read the spans of the patches, of what attention mixed, and of what the second layer was fed."""
        observation, warnings = self.observation.one_round()
        layers, own = self.layers, self.embedding
        device = observation.initial[own.weight].device
        state = cast_state(observation.initial, device, torch.float64)
        decoys = PixelSpace(observation.input_shape, None).decoys(TOKENS.decoys, generator).to(device, torch.float64)
        names = (own.weight, layers.layers.weights[0], f"{layers.projection}.weight", layers.layers.weights[1])
        sent, returned = (state[names[-1]] for state in observation.pairs[0])
        factor = decay_factor(sent, returned, TOKENS.image_free)
        embedded, fed, mixed, tested = (_rows(observation, name, factor) for name in names)
        whole, patches, number, width = embedded.shape[1], len(own.source), layers.count, fed.shape[1]
        # where patches have fewer pixels than there are tokens, or were not trained, their rank tells nothing
        open_ended = len(embedded) in (0, whole)
        ranks = (0 if open_ended else len(embedded) / patches, len(tested) / number)
        shown = next((int(rank) for rank in ranks if rank >= 1 and rank == int(rank)), 0)
        count = shown if max(len(fed), len(tested)) <= shown * number < width else None
        most = shown * number
        if open_ended:
            embedded = torch.eye(whole, dtype=torch.float64, device=device)
        if not len(mixed):
            mixed = torch.eye(mixed.shape[1], dtype=torch.float64, device=device)
        images = TokenImages(layers, own, state, observation.input_shape, embedded, mixed[:most], decoys)
        return TokenUpdate(images, tested[:most], count, (width - 1) // number, warnings)

    def search(self, evidence: TokenUpdate, generator: torch.Generator, progress: Progress) -> TokenCandidates:
        """Find all tokens, put them together, and move the images to the minimum of ρ that is nearest."""
        assert evidence.count is not None
        images, bound = evidence.images, self._bound(evidence)
        tokens = self._found(evidence.count, generator, progress).to(images.patches)
        placed, groups = images.put_together(tokens, evidence.count, generator)
        if not len(placed.places):
            return TokenCandidates(images.points(images.decoys[:0]), images.decoys.new_zeros(0), bound, len(tokens), 0)
        groups = groups[(groups != NONE).any(1)]
        missing = groups[:, self.layers.rows] == NONE
        patches = images.of_groups(placed, groups)
        points = patches.clone()
        if images.crowded:  # patches are rough
            points = _moved(points, torch.ones_like(missing), lambda points: images.misses(points, placed, groups))
        for done in range(len(points)):
            progress(done, len(points), math.nan)
            end = points[done : done + 1]
            for free in (missing[done : done + 1], torch.ones_like(missing[:1])):
                end = _moved(end, free, lambda points: evidence.rho(points).sum())
            # an image that does not pass is held with the patches that were solved for, and no others
            points[done] = end[0] if float(evidence.rho(end)) < bound else patches[done]
        points, residual = self._best_first(evidence, points)
        return TokenCandidates(points, residual, bound, len(tokens), len(placed.places))

    def accept(
        self, evidence: TokenUpdate, candidates: TokenCandidates, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept the images below the bound; residual: their ρ."""
        assert evidence.count is not None
        residual, good = candidates.residual, candidates.residual < candidates.bound
        images = evidence.images.images(candidates.points).float()
        found = int(good.sum())
        facts: Facts = constants_of(TOKENS) | {
            "layer": self.layers.names[2],
            "tested_by": self.layers.names[3],
            "tokens": float(candidates.tokens),
            "tokens_placed": float(candidates.placed),
            "rho_accepted": float(residual[good].max()) if found else math.nan,
            "rho_next": float(residual[~good].min()) if bool((~good).any()) else math.nan,
            "rho_bound": candidates.bound,
        }
        reason = None
        if found < evidence.count:
            reason = (
                f"{evidence.count - found} of {evidence.count} images were not found: {candidates.tokens} tokens that "
                f"{self.layers.names[2]!r} was fed came back, and {candidates.placed} of them tell their places"
            )
        return Acceptance(images[good], residual[good].float(), reason, facts=facts, held=images[~good])

    def report(self, evidence: TokenUpdate, acceptance: Acceptance) -> Reconstruction:
        """Return the images, with their ρ as residual."""
        return acceptance.reported(self.observation.input_shape, evidence.warnings, num_inferred=evidence.count)

    def _found(self, count: int, generator: torch.Generator, progress: Progress) -> Tensor:
        """Search the tokens (J, D) of `count` images, once more while some are missing: other starts find others."""
        observation, _ = self.observation.one_round()
        width, number = observation.initial[self.layers.layers.weights[0]].shape[1], count * self.layers.count
        tokens = replace(observation, input_shape=(1, 1, width))
        variant = TokenVariant(tokens, Knowledge(), SearchOptions(), self.layers.layers, False, number)
        found = variant.attack(generator, progress).images.flatten(1)
        for _ in range(TOKENS.searches - 1):
            if len(found) >= number:
                break
            others = variant.attack(generator, progress).images.flatten(1)
            found = torch.cat([found, others[beside(found, others)]])
        return found

    @torch.no_grad()
    def _best_first(self, evidence: TokenUpdate, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return (the distinct ones of images (M, P, k), by rising ρ, their ρ)."""
        residual = evidence.rho(points)
        order = residual.argsort(stable=True)
        flat = points[order].flatten(1)
        kept = order[first_of_near(torch.cdist(flat, flat) < TOKENS.same * flat.norm(dim=1))]
        return points[kept], residual[kept]

    @torch.no_grad()
    def _bound(self, evidence: TokenUpdate) -> float:
        """Compute the ρ below which an image is accepted: a small share of that of decoys, and of what mixtures of two
        leave, their mean and every other patch of one in the other, of what the network makes of both."""
        images = evidence.images
        points = images.points(images.decoys)
        one, other = points.chunk(2)
        checkered = torch.arange(points.shape[1], device=points.device)[:, None] % 2 == 0
        fed = [
            images.layers.run(images.state, images.images(part)).second for part in (one, other, torch.zeros_like(one))
        ]
        basis = torch.linalg.qr(torch.stack(fed, 3))[0]
        left = []
        for mixture in ((one + other) / 2, torch.where(checkered, one, other)):
            made = images.layers.run(images.state, images.images(mixture)).second[..., None]
            missed = (made - basis @ (basis.mT @ made)).square().flatten(1).sum(1)
            left.append(missed / made.square().flatten(1).sum(1))
        wrong = min(float(part.median()) for part in (evidence.rho(points), torch.minimum(*left)))
        return min(TOKENS.accepting_share * wrong, TOKENS.most)


def _moved(points: Tensor, free: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """Move the free patches, (M, P) bool, of images (M, P, k) to the minimum of the value that is nearest."""
    if not free.any():
        return points
    ends = points[free].clone().requires_grad_()
    minimize(lambda: value(points.index_put((free,), ends)), [ends])
    return points.index_put((free,), ends.detach())


def several_of(observation: Observation, embedding: PatchEmbedding) -> SeveralVariant | None:
    """Return the variant for a network whose layers behind a patch embedding were trained; None for others."""
    layers = find_token_layers(observation.model, observation.input_shape, embedding)
    if layers is None:
        return None
    needed = {*layers.layers.weights, *layers.layers.biases}
    width = observation.initial[layers.layers.weights[0]].shape[1]
    fits = needed <= observation.moved and layers.count < width
    return SeveralVariant(observation, embedding, layers) if fits else None


def _rows(observation: Observation, name: str, factor: float) -> Tensor:
    """Return the orthonormal rows (R, in) of a weight's update, those above the rounding of its parameters; none of a
    frozen one. factor: κ, to which weight decay shrank it."""
    sent, returned = (state[name].flatten(1) for state in observation.pairs[0])
    if name not in observation.trainable:
        return sent.double()[:0]
    _, values, rows = torch.linalg.svd(without_decay(sent, returned, factor) - sent, full_matrices=False)
    return rows[values > TOKENS.rounding * rounding_of(returned.float())]
