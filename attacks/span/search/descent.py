"""Descent of many candidates at once, and which of them are different points."""

import math
from typing import Protocol

import torch
from torch import Tensor

from attacks.span.thresholds import SEARCH, Descent


class Problem(Protocol):
    """A function of points (M, n) and its gradient, deflated by orthonormal rows `found` (F, W + 1) where given."""

    def value_and_gradient(self, coordinates: Tensor, found: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


def descend(
    problem: Problem,
    start: Tensor,
    descent: Descent,
    final_rate: float = 0.0,
    found: Tensor | None = None,
    merge_after: float = 1.0,
) -> Tensor:
    """Adam from `start` (M, n), its step size on a half cosine from `descent.rate` to `final_rate`.

    Adam's step does not depend on the scale of a gradient, so every candidate advances at its own pace. merge_after:
    share of the steps after which points that have come together go on as one.
    """
    point, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step in range(descent.steps):
        value, gradient = problem.value_and_gradient(point, found)
        if step == int(merge_after * descent.steps):
            kept = value.argsort(stable=True)
            kept = kept[distinct(point[kept])]
            point, mean, square, gradient = point[kept], mean[kept], square[kept], gradient[kept]
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        decay = 0.5 + 0.5 * math.cos(math.pi * step / descent.steps)
        rate = final_rate + (descent.rate - final_rate) * decay
        correction = math.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        point.addcdiv_(mean, square.sqrt().add_(1e-12), value=-rate * correction)
    return point


def distinct(points: Tensor) -> Tensor:
    """Indices of the points (M, n), best first, farther than a tenth of the median distance from every better one."""
    if len(points) < 2:
        return torch.arange(len(points), device=points.device)
    distances = torch.cdist(points, points)
    near = (distances <= SEARCH.same_point * distances.median()).cpu()
    kept: list[int] = []
    covered = torch.zeros(len(points), dtype=torch.bool)
    for i in range(len(points)):
        if not covered[i]:
            kept.append(i)
            covered |= near[i]
    return torch.tensor(kept, dtype=torch.long, device=points.device)
