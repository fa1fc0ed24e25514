"""What the passes of a search have found, and which of it is accepted.

A pass descends from random starts, tests duals and deflates what it found; passes go on until all candidates pass the
test or nothing is gained.

The mean of two candidates is not a private image. Such means are the decoys: a candidate is accepted below the lowest
percent of their ρ.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from attacks.base import Progress
from attacks.interface.options import POSITIVE, above_zero_to
from attacks.span.search.descent import Loss, beside, descend_points, distinct
from attacks.span.search.problems import AffineSpan, FreePoints, SpanProblem, SpanTest
from attacks.span.sparse_duals import DualSpace, fewest_zeros, retry_doubtful, sparsest, sparsest_of_many
from attacks.span.thresholds import ACCEPTANCE, CERTAINTY, DECOY, SEARCH, SPARSITY, Descent

MOST_STARTS = 10_000  # points that a pass moves at a time, with their features: in memory all of them


@dataclass(frozen=True)
class Candidates:
    """Images that passed the sparsity test, and loose candidates, which did not; all in float64.

    duals: the factors of the first layer's update.
    test: of the second layer's.
    directions: (F, N), the c of the duals of the images that passed.
    passed: (F, in).
    loose: (P, in), freed from what they share with those that passed.
    residual: (P,), their ρ, lowest first.
    threshold: ρ below which a loose candidate is accepted.
    decoy_median: the median ρ of the decoys.
    sparsity_tested: whether duals have zeros that can be tested (ReLU only).
    crowded: whether there are many images for the width.
    passes: how many passes of the search it took to find them.
    """

    duals: DualSpace
    test: SpanTest
    directions: Tensor
    passed: Tensor
    loose: Tensor
    residual: Tensor
    threshold: float = 0.0
    decoy_median: float = float("inf")
    sparsity_tested: bool = True
    crowded: bool = False
    passes: int = 0

    @classmethod
    def empty(
        cls, duals: DualSpace, test: SpanTest, sparsity_tested: bool = True, crowded: bool = False
    ) -> "Candidates":
        images, directions = duals.rows.new_zeros(0, duals.rows.shape[1] - 1), duals.values.new_zeros(0, duals.count)
        none = images[:, 0].float()
        return cls(duals, test, directions, images, images, none, sparsity_tested=sparsity_tested, crowded=crowded)

    @property
    def missing(self) -> int:
        """How many images have not passed yet."""
        return self.duals.count - len(self.passed)

    def below(self, bound: float) -> Tensor:
        """Return the loose candidates with ρ below a bound, best first, and no more than images are missing."""
        return self.loose[self.residual < bound][: self.missing]

    def accepted(self) -> Tensor:
        """Return the images that passed, but those with a ρ worse than half of the decoys', and accepted loose ones."""
        known = self.passed[self.test.residual(self.passed.float()) < self.decoy_median]
        return torch.cat([known, self.below(self.threshold)])

    def held(self, returned: Tensor) -> Tensor:
        """Return the best candidates (H, in) but those returned (M, in), in float32, lowest ρ first: two for each."""
        everything = torch.cat([self.passed, self.loose]).float()
        everything = everything[self.test.residual(everything).argsort(stable=True)]
        room = int(ACCEPTANCE.held_per_image * self.duals.count) - len(returned)
        return everything[beside(returned.float(), everything)][: max(0, room)]

    def num_accepted_and_passed(self) -> tuple[int, int]:
        """Count the images that passed the sparsity test or are accepted by their ρ, and those that passed: by these a
        pass is judged, not by ρ, which is large for images that were first used after some steps."""
        return len(self.passed) + len(self.below(self.threshold)), len(self.passed)

    def deflating_features(self, with_passed: bool) -> Tensor | None:
        """Return orthonormal features (F, W + 1) of the best loose candidates and, if asked for, images that passed."""
        surest = self.below(DECOY.deflating_share * self.threshold)
        images = torch.cat([self.passed, surest]) if with_passed else surest
        return torch.linalg.qr(self.test.features(images.float()).T)[0].T.contiguous() if len(images) else None

    def merge(self, images: Tensor, generator: torch.Generator) -> "Candidates":
        """Return these with further candidates (M, in), the best of which take the sparsity test."""
        found = self._ranked(torch.cat([self.loose, images]), generator)
        if not self.sparsity_tested:
            return found
        duals = self.duals
        tested = found.loose if self.crowded else found.loose[: SPARSITY.tested_per_missing * self.missing]
        rough, known = duals.coordinates(tested), duals.coordinates(self.passed)
        if self.crowded:
            sought = sparsest_of_many(duals, rough, known)
        else:
            sure = torch.zeros(len(tested), dtype=torch.bool, device=tested.device)
            sure[: len(found.below(found.threshold))] = True
            sought = sparsest(duals, rough, sure, known)
        directions = torch.cat([self.directions, sought])
        kept = duals.passing(directions)
        directions, rough = directions[kept], torch.cat([known, rough])[kept]
        directions = retry_doubtful(duals, rough, directions)
        still = duals.passing(directions)
        directions, rough, kept = directions[still], rough[still], kept[still]
        passed = duals.images(duals.disentangle(rough, directions))
        loose = torch.ones(len(found.loose), dtype=torch.bool, device=kept.device)
        loose[kept[kept >= len(known)] - len(known)] = False  # what is left of one that passed is no image
        return replace(found, directions=directions, passed=passed)._ranked(found.loose[loose], generator)

    def mixed(self) -> Tensor:
        """Return which duals (F,) are mixtures of another one with one lost in rounding: they have next to no zeros
        beside the other's, and their own images contradict them."""
        duals, directions = self.duals, self.directions
        shared = duals.shared_zeros(directions, directions).fill_diagonal_(0) >= SPARSITY.shared_zeros
        return shared.any(1) & (duals.contradicted(directions, self.passed) >= CERTAINTY.contradicted)

    def with_weakest_released(self) -> "Candidates":
        """Release the images that passed with the fewest zeros as loose candidates: a mixture hides what it is made
        of."""
        kept = torch.ones(len(self.directions), dtype=torch.bool, device=self.directions.device)
        kept[fewest_zeros(self.duals, self.directions)] = False
        released = self.passed[~kept]
        residual = torch.cat([self.test.residual(released.float()), self.residual])
        order = residual.argsort(stable=True)
        loose = torch.cat([released, self.loose])[order]
        directions, passed = self.directions[kept], self.passed[kept]
        return replace(self, directions=directions, passed=passed, loose=loose, residual=residual[order])

    def with_loose(self, loose: Tensor) -> "Candidates":
        """Return these with other loose candidates (M, in), distinct ones, lowest ρ first."""
        residual = self.test.residual(loose.float())
        order = residual.argsort(stable=True)
        order = order[distinct(loose[order])]
        return replace(self, loose=loose[order], residual=residual[order])

    def _ranked(self, loose: Tensor, generator: torch.Generator) -> "Candidates":
        """Return these with other loose candidates (M, in), distinct and best first, and thresholds from new decoys."""
        loose = self.duals.images(self.duals.without(self.duals.coordinates(loose), self.directions))
        ranked = self.with_loose(loose[loose.isfinite().all(1)] if self.missing else loose[:0])
        decoys = decoys_of(torch.cat([self.passed, ranked.loose[: self.missing]]), DECOY.number, generator)
        if not len(decoys):
            return ranked
        rho = self.test.residual(decoys.float())
        threshold = float(rho.quantile(DECOY.accepting_quantile))
        return replace(ranked, threshold=threshold, decoy_median=float(rho.median()))


def decoys_of(images: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Make decoys, means of two of the images (M, …): `number` pairs are drawn, those of an image with itself left out.
    A single image is paired with its own pixels in random orders."""
    if len(images) == 1:
        orders = torch.rand(number, images[0].numel(), generator=generator).argsort(1).to(images.device)
        return (images + images.flatten()[orders].view(number, *images.shape[1:])) / 2
    pairs = torch.randint(max(len(images), 1), (2, number), generator=generator)
    first, second = pairs[:, pairs[0] != pairs[1]].to(images.device)
    return (images[first] + images[second]) / 2 if len(images) else images


@dataclass(frozen=True)
class SearchOptions:
    """How long a search goes on: those options of `SpanAttack`, which says what they mean."""

    starts: Annotated[int, above_zero_to(MOST_STARTS)] = 300
    steps: Annotated[int, POSITIVE] = 200
    settle: Annotated[int, POSITIVE] = 100
    polish: Annotated[int, POSITIVE] = 100
    rounds: Annotated[int, POSITIVE] = 12
    learning_rate: Annotated[float, POSITIVE] = 0.05


def find_images(
    nothing: Candidates, options: SearchOptions, generator: torch.Generator, progress: Progress
) -> Candidates:
    """Return the best that the passes of a search find, which starts from `nothing`.

    It ends when all images have passed the sparsity test, or after some passes in a row without gain. After one, the
    images that passed with the fewest zeros have to pass once more, and all directions of the second layer are searched
    from the start.
    """
    best = found = nothing
    idle = passes = 0
    while passes < options.rounds and idle < SEARCH.idle_passes and found.missing > 0:
        progress(passes, options.rounds, found.threshold)
        found = found.with_weakest_released() if idle else found
        found = found.merge(_search(found, options, idle == 0, generator), generator)
        idle = 0 if found.num_accepted_and_passed() > best.num_accepted_and_passed() else idle + 1
        best = max(best, found, key=Candidates.num_accepted_and_passed) if passes else found
        passes += 1
    progress(options.rounds, options.rounds, best.threshold)
    return replace(_refined(best), passes=passes)


def _search(found: Candidates, options: SearchOptions, coarse: bool, generator: torch.Generator) -> Tensor:
    """Find distinct minima of ρ, (M, in) in float64; once most images have passed, in the span of the others alone.

    coarse: whether the search, before it settles, sees the second layer's leading directions only.
    """
    duals, test = found.duals, found.test
    complement = found.crowded or len(found.passed) >= SEARCH.complement_after * duals.count
    rows = duals.remaining_rows(found.directions if complement else found.directions[:0])
    span = AffineSpan.scaled(rows) if found.crowded and len(rows) > 1 else AffineSpan.of(rows, generator)
    problem, size = SpanProblem.of(test, span), len(span.directions)
    if size == 0:
        return span.origin[None, :-1]
    known = found.deflating_features(with_passed=not complement)
    points = (torch.randn(options.starts, size, generator=generator) / size**0.5).to(test.rows)
    rate = options.learning_rate
    settle, polish = SEARCH.settle_rate * rate, SEARCH.polish_rate * rate
    loss, seen = problem.value_and_gradient, problem.leading(test.leading if coarse else None)
    first = partial(seen.value_and_gradient, found=known)
    points = descend_points(first, points, Descent(options.steps, rate), settle, SEARCH.merge_after)
    points = descend_points(loss, _distinct(loss, points), Descent(options.settle, settle), polish)
    points = descend_points(loss, _distinct(loss, points), Descent(options.polish, polish))
    return span.images(points.double())


def _distinct(loss: Loss, points: Tensor) -> Tensor:
    points = points[loss(points)[0].argsort(stable=True)]
    return points[distinct(points)]


def _refined(found: Candidates) -> Candidates:
    """Move the candidates that may be accepted on to their minima, twice where a dual is a mixture: it forbids others
    to move where they have to."""
    moved = _at_minima(found)
    real = ~moved.mixed()
    if real.all():
        return moved
    return _at_minima(replace(moved, directions=moved.directions[real], passed=moved.passed[real]))


def _at_minima(found: Candidates) -> Candidates:
    """Do the same for duals that are taken for right: a search ends after so many steps, and duals leave images that
    passed free along what is missing. Two that come to one are one.

    One that passed may rest midway between its own image and a missing one, where ρ is stationary. It moves on from the
    lowest of where it is and its reflections in the missing ones that are known."""
    free = found.duals.remaining_rows(found.directions)
    near = found.below(found.threshold)
    if len(free) == 0 or len(found.passed) + len(near) == 0:
        return found
    points = FreePoints.of(found.test, free)
    started = [_past_midway(found.test, image, near) for image in found.passed]
    passed, loose = (
        torch.stack([points.settled(image) for image in part]) if len(part) else old
        for part, old in ((started, found.passed), (near, near))
    )
    return replace(found, passed=passed).with_loose(torch.cat([loose, found.loose[len(near) :]]))


def _past_midway(test: SpanTest, image: Tensor, missing: Tensor) -> Tensor:
    """Return, of an image (in,) and its reflections in the nearest of those missing (M, in), the one of lowest ρ."""
    nearest = (missing - image).norm(dim=1).argsort(stable=True)[: SEARCH.reflected]
    starts = torch.cat([image[None], 2 * image - missing[nearest]])
    return starts[test.residual(starts.float()).argmin()]
