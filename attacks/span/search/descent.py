"""Descent of many candidates at once, and which of them are different points."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attacks.span.thresholds import SEARCH, Descent

Loss = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The values (M,) of a function at points (M, …), each of which stands alone, and their gradients (M, …)."""


def with_gradient(value: Callable[[Tensor], Tensor]) -> Loss:
    """A function of points (M, …) with values (M,), differentiated by torch."""

    def value_and_gradient(points: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            points = points.detach().requires_grad_()
            values = value(points)
            (gradient,) = torch.autograd.grad(values.sum(), points)
        return values.detach(), gradient

    return value_and_gradient


def descend(loss: Loss, start: Tensor, descent: Descent, final_rate: float = 0.0, merge_after: float = 1.0) -> Tensor:
    """Adam from `start` (M, …), its step size on a half cosine from `descent.rate` to `final_rate`.

    Adam's step does not depend on the scale of a gradient, so every candidate advances at its own pace. merge_after:
    share of the steps from which on points that have come together go on as one.
    """
    point, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step in range(descent.steps):
        value, gradient = loss(point)
        if step >= merge_after * descent.steps and step % SEARCH.merge_every == 0:
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
    """Indices of the points (M, n), best first, farther than a tenth of the median distance from every better one, and
    than a ten-thousandth of their length: that tells nothing apart where all points are one."""
    if len(points) < 2:
        return torch.arange(len(points), device=points.device)
    distances = torch.cdist(points, points)
    least = torch.maximum(SEARCH.same_point * distances.median(), SEARCH.same_length * points.norm(dim=1).median())
    near = (distances <= least).cpu()
    kept: list[int] = []
    covered = torch.zeros(len(points), dtype=torch.bool)
    for i in range(len(points)):
        if not covered[i]:
            kept.append(i)
            covered |= near[i]
    return torch.tensor(kept, dtype=torch.long, device=points.device)


def beside(known: Tensor, points: Tensor) -> Tensor:
    """Indices of the points (M, n), best first, that are distinct from one another and from all that are known
    (F, n)."""
    kept = distinct(torch.cat([known.to(points), points]))
    return kept[kept >= len(known)] - len(known)
