"""The passes of a search: descend from random starts, test duals, deflate, until all pass or nothing is gained."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from attacks.interface.attack import Progress
from attacks.span.search.candidates import Candidates
from attacks.span.search.descent import descend, distinct
from attacks.span.search.problems import AffineSpan, FreeProblem, SpanProblem
from attacks.span.thresholds import SEARCH, Descent


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
    one, the images that passed with the fewest zeros become candidates again, and have to pass once more.
    """
    best = found = nothing
    idle = passes = 0
    while passes < options.rounds and idle < SEARCH.idle_passes and len(found.passed) < found.total:
        progress(passes, options.rounds, found.threshold)
        found = found.with_weakest_released() if idle else found
        found = found.merge(_search(found, options, generator), generator)
        idle = 0 if found.num_accepted_and_passed() > best.num_accepted_and_passed() else idle + 1
        best = max(best, found, key=Candidates.num_accepted_and_passed)
        passes += 1
    progress(options.rounds, options.rounds, best.threshold)
    return replace(_refined(best, options), passes=passes)


def _search(found: Candidates, options: SearchOptions, generator: torch.Generator) -> Tensor:
    """Distinct minima of ρ, (M, in) in float64; once most images have passed, in the span of the others alone."""
    duals, test = found.duals, found.test
    complement = len(found.passed) >= SEARCH.complement_after * found.total
    span = AffineSpan.of(duals.remaining_rows(found.directions if complement else found.directions[:0]), generator)
    problem, size = SpanProblem.of(test, span), len(span.directions)
    if size == 0:
        return span.origin[None, :-1]
    known = found.deflating_features(with_passed=not complement)
    points = (torch.randn(options.starts, size, generator=generator) / size**0.5).to(test.rows)
    rate = options.learning_rate
    settle, polish = SEARCH.settle_rate * rate, SEARCH.polish_rate * rate
    points = descend(problem, points, Descent(options.steps, rate), settle, known, SEARCH.merge_after)
    points = descend(problem, _distinct(problem, points), Descent(options.settle, settle), polish)
    points = descend(problem, _distinct(problem, points), Descent(options.polish, polish))
    return span.images(points.double())


def _distinct(problem: SpanProblem, points: Tensor) -> Tensor:
    points = points[problem.value_and_gradient(points)[0].argsort(stable=True)]
    return points[distinct(points)]


def _refined(found: Candidates, options: SearchOptions) -> Candidates:
    """The images that passed, where ρ settles what their directions leave free in them; nothing where all passed."""
    free = found.duals.remaining_rows(found.directions)
    if len(found.passed) == 0 or len(free) == 0:
        return found
    points = pad(found.passed, (0, 1), value=1.0)
    free = torch.linalg.qr(free.T)[0].T * points.norm(dim=1).mean()
    problem = FreeProblem(found.test, points.to(found.test.rows), free.to(found.test.rows))
    start = points.new_zeros(len(points), len(free)).to(found.test.rows)
    end = descend(problem, start, Descent(options.settle, SEARCH.settle_rate * options.learning_rate))
    better = problem.value_and_gradient(end)[0] < problem.value_and_gradient(start)[0]
    coordinates = torch.where(better[:, None], end, start).to(free)
    return replace(found, passed=FreeProblem(found.test, points, free).images(coordinates))
