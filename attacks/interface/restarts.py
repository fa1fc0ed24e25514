"""Independent starts of one optimization, of which the best is kept."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from attacks.interface.attack import Progress

ReportLoss = Callable[[int, float], None]
"""Called with (iterations done, current loss) by one start."""


@dataclass(frozen=True)
class Solution:
    """What one start ends with. images: (M, C, H, W). residual: by which starts are compared. trace: (iteration, loss)
    pairs."""

    images: Tensor
    residual: float
    trace: tuple[tuple[int, float], ...]


Solved = TypeVar("Solved", bound=Solution)


def best_of_restarts(
    restarts: int, iterations: int, solve: Callable[[ReportLoss], Solved], progress: Progress
) -> Solved:
    """The solution with the smallest residual of so many starts, each of so many iterations; NaN is the last choice."""

    def report(start: int) -> ReportLoss:
        return lambda done, loss: progress(start * iterations + done, restarts * iterations, loss)

    solutions = [solve(report(start)) for start in range(restarts)]
    return min(solutions, key=lambda solution: (math.isnan(solution.residual), solution.residual))
