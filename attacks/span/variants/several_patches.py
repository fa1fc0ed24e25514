"""The span attack on vision transformers whose client has several images, after one step of SGD.

Every token passes by itself through the two linear layers behind the first attention. To them, all tokens of all images
are what images are to an MLP, and come back as those do (`attacks.span.variants.pixels`): exactly, and without saying
where they belong. `attacks.span.tokens` finds their places and patches by linear algebra, and which of them make an
image; `attacks.span.token_fit` finds the image that all of them tell, with patches whose tokens did not come back.

Where positions are learned, their updates say more of patches. With ΔW = Σ δ_np x_npᵀ of the patch embedding and
ΔE_p = Σ_n δ_np, n the image and p the place, and where patches are as many as the rank of ΔW, there is an M with
ΔW M = ΔE, and x_np M = e_p: P equations for each patch, the same for all images.
"""

import math
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
from attacks.span.maps.update import rounding_of
from attacks.span.search.candidates import SearchOptions
from attacks.span.search.descent import beside, first_of_near
from attacks.span.stages import Acceptance, Refusal, Variant
from attacks.span.thresholds import TOKENS, constants_of
from attacks.span.token_fit import PatchSpace
from attacks.span.tokens import NONE, TokenImages
from attacks.span.variants.pixels import PixelVariant
from attacks.update.spectrum import decay_factor, without_decay


@dataclass(frozen=True)
class TokenUpdate:
    """What the updates of a patch embedding and of the layers behind it show of a client's tokens.

    images: how images follow from their patches.
    count: N, None where the updates are not those of one step on few enough images.
    most: the largest number of images that the layers tell.
    warnings: on other rounds.
    """

    images: TokenImages
    count: int | None
    most: int
    warnings: tuple[str, ...] = ()

    @property
    def refusal(self) -> Refusal | None:
        """Why there is nothing to search."""
        unknowns, numbers = math.prod(self.images.space.shape), self.images.numbers
        most = min(TOKENS.unknowns, TOKENS.derivatives // numbers)
        if self.count is not None and unknowns > most:
            return Refusal(
                f"nothing returned: patches of {self.count} images leave {unknowns} unknowns an image, and at most "
                f"{most} are solved for where its tokens are {numbers} numbers"
            )
        if self.count is not None:
            return None
        return Refusal(
            "nothing returned: the update of the patch embedding is not that of one step of SGD on few enough images "
            f"(here at most {self.most})"
        )


@dataclass(frozen=True)
class TokenCandidates:
    """Images by the coordinates of their patches, best first.

    points: (M, P, q).
    error: (M,), of a pixel, to be expected, to the deviation of the image's pixels.
    tokens: how many the first layer was found to be fed.
    placed: how many of them have a certain place.
    """

    points: Tensor
    error: Tensor
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
        whole_images = (int(rank) for rank in ranks if rank >= 1 and rank == int(rank))
        shown = next(whole_images, math.ceil(ranks[0]))  # patches that are alike take away from the rank
        count = shown if max(len(fed), len(tested)) <= shown * number < width else None
        if open_ended:
            embedded = torch.eye(whole, dtype=torch.float64, device=device)
        if not len(mixed):
            mixed = torch.eye(mixed.shape[1], dtype=torch.float64, device=device)
        space = self._space(observation, embedded, factor)
        images = TokenImages(layers, own, state, observation.input_shape, space, mixed[: shown * number], decoys)
        return TokenUpdate(images, count, (width - 1) // number, warnings)

    def search(self, evidence: TokenUpdate, generator: torch.Generator, progress: Progress) -> TokenCandidates:
        """Find all tokens, put them together, and find the images that they tell."""
        assert evidence.count is not None
        images = evidence.images
        tokens = self._found(evidence.count, generator, progress).to(images.state[self.embedding.weight])
        placed, groups = images.put_together(tokens, evidence.count, generator)
        groups = groups[(groups[:, self.layers.rows] != NONE).any(1)]  # images of which a patch was found
        if not len(groups):
            return TokenCandidates(images.points(images.decoys[:0]), images.decoys.new_zeros(0), len(tokens), 0)
        points, errors = images.of_groups(placed, groups), []
        for done in range(len(points)):
            progress(done, len(points), math.nan)
            found = images.likeliest(placed, groups[done], generator)
            points[done] = found.z
            errors.append(found.error)
        error = points.new_tensor(errors)
        kept = error.argsort(stable=True)
        flat = points[kept].flatten(1)
        kept = kept[first_of_near(torch.cdist(flat, flat) < TOKENS.same * flat.norm(dim=1))]
        return TokenCandidates(points[kept], error[kept], len(tokens), len(placed.places))

    def accept(
        self, evidence: TokenUpdate, candidates: TokenCandidates, generator: torch.Generator, progress: Progress
    ) -> Acceptance:
        """Accept the images of which little error is to be expected; residual: that error."""
        assert evidence.count is not None
        error, good = candidates.error, candidates.error < TOKENS.certain
        images = evidence.images.images(candidates.points).float()
        found = int(good.sum())
        facts: Facts = constants_of(TOKENS) | {
            "layer": self.layers.names[2],
            "tested_by": self.layers.names[3],
            "tokens": float(candidates.tokens),
            "tokens_placed": float(candidates.placed),
            "error_accepted": float(error[good].max()) if found else math.nan,
            "error_next": float(error[~good].min()) if bool((~good).any()) else math.nan,
        }
        reason = None
        if found < evidence.count:
            reason = (
                f"{evidence.count - found} of {evidence.count} images were not found: {candidates.tokens} tokens that "
                f"{self.layers.names[2]!r} was fed came back, and {candidates.placed} of them tell their places"
            )
        return Acceptance(images[good], error[good].float(), reason, facts=facts, held=images[~good])

    def report(self, evidence: TokenUpdate, acceptance: Acceptance) -> Reconstruction:
        """Return the images, with the error to be expected of them as residual."""
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

    def _space(self, observation: Observation, rows: Tensor, factor: float) -> PatchSpace:
        """Return what patches can be that lie in rows (k, n), by the updates of the embedding and of the positions.
        factor: κ, from which positions may be exempt."""
        own, shape = self.embedding, observation.input_shape
        prior, places = PixelSpace(shape, None), len(own.source)
        base, directions = rows.new_zeros(places, len(rows)), torch.eye(len(rows)).to(rows)
        if own.positions in observation.moved and len(rows) > places:
            weight = _update(observation, own.weight, factor).flatten(1) @ rows.T
            for decay in (factor, 1.0):
                moved = _update(observation, own.positions, decay).reshape(-1, len(weight))[own.rows]
                solved = torch.linalg.lstsq(weight, moved.T).solution
                if float((weight @ solved - moved.T).norm()) < TOKENS.positions * float(moved.norm()):
                    base, directions = torch.linalg.pinv(solved), torch.linalg.svd(solved.T)[2][places:]
                    break

        def improbability(points: Tensor) -> Tensor:
            return prior.improbability(own.images((base + points @ directions) @ rows, shape))

        return PatchSpace(rows, base, directions, improbability)


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
    returned = observation.pairs[0][1][name].flatten(1)
    if name not in observation.trainable:
        return returned.double()[:0]
    _, values, rows = torch.linalg.svd(_update(observation, name, factor).flatten(1), full_matrices=False)
    return rows[values > TOKENS.rounding * rounding_of(returned.float())]


def _update(observation: Observation, name: str, factor: float) -> Tensor:
    """Return the update of a parameter without the decay by κ = `factor`, in float64."""
    sent, returned = (state[name] for state in observation.pairs[0])
    return without_decay(sent, returned, factor) - sent
