"""The rounds of a span attack: search, certify, deflate, until every image is certified or nothing more comes."""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from attacks.interface.attack import Progress
from attacks.span.candidates import Candidates
from attacks.span.search import AffineSpan, FreeProblem, SpanProblem, descend, distinct

THIN = 0.5  # of the search's steps: most starts have come together by then
PEEL = 0.75  # of the images certified: from there on their complement is searched alone
IDLE = 2  # rounds in a row without gain that end the search


class Options(Protocol):
    """What is used of the attack's options."""

    @property
    def starts(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def settle(self) -> int: ...
    @property
    def polish(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...


def find_images(
    nothing: Candidates, options: Options, generator: torch.Generator, progress: Progress
) -> tuple[Candidates, int]:
    """(the best found, rounds), from `nothing`. Ends when all are certified or two rounds in a row brought nothing.

    After a round without gain the certified with the fewest zeros have to prove themselves again.
    """
    best = found = nothing
    idle = rounds = 0
    while rounds < options.rounds and idle < IDLE and len(found.exact) < found.total:
        progress(rounds, options.rounds, found.threshold)
        found = found.released() if idle else found
        found = found.merge(_search(found, options, generator), generator)
        idle = 0 if found.merit() > best.merit() else idle + 1
        best = max(best, found, key=Candidates.merit)
        rounds += 1
    progress(options.rounds, options.rounds, best.threshold)
    return _refined(best, options), rounds


def _search(found: Candidates, options: Options, generator: torch.Generator) -> Tensor:
    """Distinct minima of ρ, (M, in) in float64; once most images are certified, in the span of the others alone."""
    duals, test = found.duals, found.test
    peel = len(found.exact) >= PEEL * found.total
    span = AffineSpan.of(duals.remaining_rows(found.directions if peel else found.directions[:0]), generator)
    problem, size = SpanProblem.of(test, span), len(span.directions)
    if size == 0:
        return span.origin[None, :-1]
    rate, known = options.learning_rate, found.features(exact=not peel)
    points = torch.randn(options.starts, size, generator=generator) / size**0.5
    points = descend(problem, points.to(test.rows), options.steps, rate, 0.4 * rate, known, THIN)
    points = _distinct(problem, points)
    points = descend(problem, points, options.settle, 0.4 * rate, 0.1 * rate)
    points = _distinct(problem, points)
    return span.images(descend(problem, points, options.polish, 0.1 * rate).double())


def _distinct(problem: SpanProblem, points: Tensor) -> Tensor:
    points = points[problem.value_and_gradient(points)[0].argsort(stable=True)]
    return points[distinct(points)]


def _refined(found: Candidates, options: Options) -> Candidates:
    """What the directions of some images leave free in the others is settled by ρ: none where all are certified."""
    free = found.duals.remaining_rows(found.directions)
    if len(found.exact) == 0 or len(free) == 0:
        return found
    points = torch.nn.functional.pad(found.exact, (0, 1), value=1.0)
    free = torch.linalg.qr(free.T)[0].T * points.norm(dim=1).mean()
    problem = FreeProblem(found.test, points.to(found.test.rows), free.to(found.test.rows))
    start = points.new_zeros(len(points), len(free)).to(found.test.rows)
    end = descend(problem, start, options.settle, 0.4 * options.learning_rate)
    better = problem.value_and_gradient(end)[0] < problem.value_and_gradient(start)[0]
    coordinates = torch.where(better[:, None], end, start).to(free)
    return replace(found, exact=FreeProblem(found.test, points, free).images(coordinates))
