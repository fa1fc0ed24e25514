"""One pass of a search in feature space: candidates for private images at given parameters, and how they are judged.

Feature vectors of low ρ are found in the span of the first fully connected layer's update, inverted to pixels and made
exact there. Decoys, the means of two candidates, say how low ρ and λ (`sgd_steps`) have to be.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attacks.interface.observation import State
from attacks.span.evidence.layers import layer_matrix
from attacks.span.feature_space.inversion import PixelTest, invert_features
from attacks.span.feature_space.network import FeatureProblem
from attacks.span.feature_space.sgd_steps import output_jacobian
from attacks.span.feature_space.update import FeatureUpdate
from attacks.span.search.candidates import decoys_of
from attacks.span.search.descent import descend, distinct
from attacks.span.search.passes import SearchOptions
from attacks.span.search.problems import AffineSpan, SpanProblem, SpanTest
from attacks.span.thresholds import FEATURES, INVERSION, SEARCH, Descent


@dataclass(frozen=True)
class FoundImages:
    """Images that were judged.

    images: (F, C, H, W). duals: (F, K), those of the SGD step that first used them. residual, gradient: (F,), ρ and λ.
    step: (F,), the number of that step.
    """

    images: Tensor
    duals: Tensor
    residual: Tensor
    gradient: Tensor
    step: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def at(self, kept: Tensor) -> "FoundImages":
        """Those of the indices, or of the mask, `kept`."""
        return FoundImages(*(part[kept] for part in self._parts()))

    def join(self, other: "FoundImages") -> "FoundImages":
        """These and those of `other`."""
        return FoundImages(*(torch.cat(parts) for parts in zip(self._parts(), other._parts(), strict=True)))

    def _parts(self) -> tuple[Tensor, ...]:
        return self.images, self.duals, self.residual, self.gradient, self.step


@dataclass(frozen=True)
class Bounds:
    """The ρ (`residual`) and the λ (`gradient`) below which an image is accepted."""

    residual: float
    gradient: float


@dataclass(frozen=True)
class FeatureSearch:
    """The search in one update."""

    update: FeatureUpdate
    options: SearchOptions

    def none(self, state: State) -> FoundImages:
        """No image."""
        images = self.update.rows.new_zeros(0, *self.update.shape)
        probe = self.update.rows.new_zeros(1, *self.update.shape)
        with torch.no_grad():
            outputs = torch.func.functional_call(self.update.network.model, state, (probe,))
        nothing = images.reshape(0)
        duals = images.new_zeros(0, outputs.numel()).double()
        return FoundImages(images, duals, nothing, nothing.double(), nothing.long())

    def candidates(self, state: State, found: Tensor, idle: int, generator: torch.Generator) -> Tensor:
        """Distinct polished images (M, C, H, W), lowest ρ at `state` first; those found (F, C, H, W) are deflated.

        idle: how many passes in a row found nothing.
        """
        update, pixels = self.update, self.update.pixels(state)
        missing = update.count - len(found)
        number = int(FEATURES.inverted_per_missing * missing) + FEATURES.inverted_besides
        features = None if update.test is None else self._features(state, found, idle, generator)[:number]
        noise = torch.randn((number if features is None else len(features), *update.shape), generator=generator)
        images = INVERSION.start_deviation * noise.to(update.rows.device)
        if features is None:
            with torch.no_grad():
                known = torch.linalg.qr(pixels.points(found).T)[0].T if len(found) else None
            rank = int(INVERSION.noise_rank * update.count)
            images = pixels.polish(images, rank, INVERSION.noise_search, known)
        else:
            images = invert_features(update.network, state, features, images, INVERSION.inversion, INVERSION.blur)
        first = min(int(INVERSION.first_rank * update.count), len(update.rows))
        images = _polished(pixels, images, first, INVERSION.first_polish)
        return _polished(pixels, images, len(update.rows), INVERSION.last_polish) if len(images) else images

    def finish(self, state: State, found: FoundImages) -> FoundImages:
        """Accepted images, polished once more at the parameters at which they were found."""
        if not len(found):
            return found
        rank = len(self.update.rows)
        images = self.update.pixels(state).polish(found.images, rank, INVERSION.accepted_polish)
        return self.judge(state, images, int(found.step[0]))

    def judge(self, state: State, images: Tensor, step: int) -> FoundImages:
        """The images with their duals, ρ and λ at the parameters `state`, which those before the given step are."""
        pixels = self.update.pixels(state)
        jacobian = output_jacobian(self.update.network, state, images)
        with torch.no_grad():
            points, residual = pixels.points(images), pixels.residual(images, len(self.update.rows))
        duals, gradient = self.update.factors.duals(jacobian, points)
        return FoundImages(images, duals, residual, gradient, torch.full_like(residual, step, dtype=torch.long))

    def bounds(self, state: State, images: Tensor, generator: torch.Generator) -> Bounds:
        """What decoys allow, the means of two of the images: private ones are no such means, wrong ones no better."""
        decoys = self.judge(state, decoys_of(images, FEATURES.decoys, generator), 0)
        residual = float(decoys.residual.quantile(FEATURES.accepting_quantile))
        gradient = float(decoys.gradient.quantile(FEATURES.accepting_quantile))
        return Bounds(residual, FEATURES.gradient_share * gradient)

    def _features(self, state: State, found: Tensor, idle: int, generator: torch.Generator) -> Tensor:
        """Feature vectors (M, D) in the first layer's span with low ρ of the second, best first."""
        update, network = self.update, self.update.network
        name, missing = network.layers[0], update.count - len(found)
        first = layer_matrix(state, f"{name}.weight", f"{name}.bias", update.rows.device).float()
        assert update.test is not None and network.activation is not None
        test = SpanTest(first, update.test[None], network.activation)
        with torch.no_grad():
            known = network.features(state, found) if len(found) else first[:0, :-1]
        rows = update.factors.rows[: int(FEATURES.span_directions[idle] * update.count)]
        pool, deflated = known[:0], known
        for _ in range(FEATURES.searches_per_pass):
            pool = torch.cat([pool, self._minima(test, rows, deflated, generator)])
            value = test.residual(pool) + pool.clamp_max(0).square().sum(1) / pool.square().sum(1)
            order = value.argsort(stable=True)
            kept = order[distinct(normalize(pool[order]))]
            pool, value = pool[kept], value[kept]
            lowest = value[: max(missing, 2)].quantile(FEATURES.deflating_quantile)
            surest = pool[value < FEATURES.deflating_ratio * lowest][:missing]
            deflated = torch.cat([known, surest])
        return pool[are_apart(normalize(pool), normalize(known))]

    def _minima(self, test: SpanTest, rows: Tensor, deflated: Tensor, generator: torch.Generator) -> Tensor:
        """Minima (M, D) of ρ in the span of some rows, from random starts; those features (F, D) are deflated."""
        rate, steps = self.options.learning_rate, self.options.steps + self.options.settle
        span = AffineSpan.of(rows, generator)
        problem = FeatureProblem.of(SpanProblem.of(test, span), span, self.update.network.nonnegative)
        basis = torch.linalg.qr(test.features(deflated).T)[0].T.contiguous() if len(deflated) else None
        size = len(span.directions)
        points = (torch.randn(self.options.starts, size, generator=generator) / size**0.5).to(rows.device)
        coarse = Descent(FEATURES.coarse_fifths * steps // 5, rate)
        fine = Descent((5 - FEATURES.coarse_fifths) * steps // 5, SEARCH.settle_rate * rate)
        points = descend(problem, points, coarse, SEARCH.settle_rate * rate, basis)
        return span.images(descend(problem, points, fine).double()).float()


def are_apart(points: Tensor, known: Tensor) -> Tensor:
    """Which points (M, n) lie farther from every known one (F, n) than a tenth of the median distance: (M,) bool."""
    if not len(known) or not len(points):
        return torch.ones(len(points), dtype=torch.bool, device=points.device)
    nearest = torch.cdist(points, known).min(1).values
    return nearest > SEARCH.same_point * torch.pdist(torch.cat([known, points])).median()


def _polished(pixels: PixelTest, images: Tensor, rank: int, descent: Descent) -> Tensor:
    """The images (M, C, H, W) polished at a rank, distinct and lowest ρ first, but for those without hope."""
    images = pixels.polish(images, rank, descent)
    residual, order = pixels.residual(images, rank).sort(stable=True)
    if not len(residual):
        return images
    order = order[residual <= FEATURES.dropped_ratio * residual[len(residual) // 4]]
    return images[order][distinct(images[order].flatten(1))]
