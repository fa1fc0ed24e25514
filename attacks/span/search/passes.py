"""The passes of a search: descend from random starts, test duals, deflate, until all pass or nothing is gained."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from attacks.interface.attack import Progress
from attacks.span.search.candidates import Candidates
from attacks.span.search.descent import Loss, descend, distinct, with_gradient
from attacks.span.search.problems import AffineSpan, SpanProblem
from attacks.span.thresholds import CROWDED, SEARCH, Descent


@dataclass(frozen=True)
class SearchOptions:
    """How long a search goes on: those options of `SpanAttack`, which says what they mean."""

    starts: int = 300
    steps: int = 200
    settle: int = 100
    polish: int = 100
    rounds: int = 12
    learning_rate: float = 0.05


def find_images(
    nothing: Candidates, options: SearchOptions, generator: torch.Generator, progress: Progress
) -> Candidates:
    """The best that the passes of a search find, which starts from `nothing`.

    The search ends when all images have passed the sparsity test, or after some passes in a row without gain. After
    one, the images that passed with the fewest zeros become candidates again, and have to pass once more, and all
    directions of the second layer are searched from the start.
    """
    best = found = nothing
    idle = passes = 0
    patience = CROWDED.idle_passes if nothing.crowded else SEARCH.idle_passes
    while passes < options.rounds and idle < patience and found.missing > 0:
        progress(passes, options.rounds, found.threshold)
        found = found.with_weakest_released() if idle else found
        found = found.merge(_search(found, options, idle == 0, generator), generator)
        idle = 0 if found.num_accepted_and_passed() > best.num_accepted_and_passed() else idle + 1
        best = max(best, found, key=Candidates.num_accepted_and_passed) if passes else found
        passes += 1
    progress(options.rounds, options.rounds, best.threshold)
    return replace(_refined(best, options), passes=passes)


def _search(found: Candidates, options: SearchOptions, coarse: bool, generator: torch.Generator) -> Tensor:
    """Distinct minima of ρ, (M, in) in float64; once most images have passed, in the span of the others alone.

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
    points = descend(first, points, Descent(options.steps, rate), settle, SEARCH.merge_after)
    points = descend(loss, _distinct(loss, points), Descent(options.settle, settle), polish)
    points = descend(loss, _distinct(loss, points), Descent(options.polish, polish))
    return span.images(points.double())


def _distinct(loss: Loss, points: Tensor) -> Tensor:
    points = points[loss(points)[0].argsort(stable=True)]
    return points[distinct(points)]


def _refined(found: Candidates, options: SearchOptions) -> Candidates:
    """The images that passed, where ρ settles what their directions leave free in them; nothing where all passed."""
    free = found.duals.remaining_rows(found.directions)
    if len(found.passed) == 0 or len(free) == 0:
        return found
    points = pad(found.passed, (0, 1), value=1.0)
    free = torch.linalg.qr(free.T)[0].T * points.norm(dim=1).mean()
    loss = with_gradient(lambda coordinates: found.test.residual(moved(points, free, coordinates)))
    start = found.test.rows.new_zeros(len(points), len(free))
    end = descend(loss, start, Descent(options.settle, SEARCH.settle_rate * options.learning_rate))
    better = loss(end)[0] < loss(start)[0]
    return replace(found, passed=moved(points, free, torch.where(better[:, None], end, start).to(free)))


def moved(points: Tensor, directions: Tensor, coordinates: Tensor) -> Tensor:
    """The images (M, in) of x̃ (M, in + 1), each moved by coordinates (M, K) of its own along directions (K, in + 1)."""
    points = points.to(coordinates) + coordinates @ directions.to(coordinates)
    return points[:, :-1] / points[:, -1:]
