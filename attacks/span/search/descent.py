"""Descent of many candidates at once, which of them are different points, and extreme points of a span.

**Extreme points** (`extreme_images`): where clients mix their images, every input is an affine combination of them, and
the span of the inputs is that of the images. Within it the points with pixels in their range form a polytope, and an
image with many black or white pixels is one of its vertices, which linear programs in random directions find. Most
vertices are nobody's image: N − 1 pixels at an end of their range make one. An image is pinned many times over: any of
its pixels may be left out. The leverage of a pixel, uᵀ(BᵀB)⁻¹u for its row u of the equations B of all pixels at an
end, is 1 where the vertex falls without it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attacks.interface.torch_tools import half_cosine
from attacks.span.sparse_duals import independent
from attacks.span.thresholds import EXTREME, SEARCH, Descent

Loss = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The values (M,) of a function at points (M, …), each of which stands alone, and their gradients (M, …)."""


def descend_points(
    loss: Loss, start: Tensor, descent: Descent, final_rate: float = 0.0, merge_after: float = 1.0
) -> Tensor:
    """Move points from `start` (M, …) by Adam, its step size on a half cosine from `descent.rate` to `final_rate`, each
    at its own pace. merge_after: share of the steps from which on points that have come together go on as one, unlike
    in `torch_tools.descend`."""
    point, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step, decay in enumerate(half_cosine(1.0, descent.steps)):
        value, gradient = loss(point)
        if step >= merge_after * descent.steps and step % SEARCH.merge_every == 0:
            kept = value.argsort(stable=True)
            kept = kept[distinct(point[kept])]
            point, mean, square, gradient = point[kept], mean[kept], square[kept], gradient[kept]
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        rate = final_rate + (descent.rate - final_rate) * decay
        correction = math.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        point.addcdiv_(mean, square.sqrt().add_(1e-12), value=-rate * correction)
    return point


def distinct(points: Tensor) -> Tensor:
    """Return indices of the points (M, n), best first, farther than a tenth of the median distance from every better
    one, and than a ten-thousandth of their length, as where all points are one."""
    if len(points) < 2:
        return torch.arange(len(points), device=points.device)
    distances = torch.cdist(points, points)
    least = torch.maximum(SEARCH.same_point * distances.median(), SEARCH.same_length * points.norm(dim=1).median())
    return first_of_near(distances <= least)


def first_of_near(near: Tensor) -> Tensor:
    """Return indices (K,) of points, best first, that are near no better one that is kept. near: (M, M) bool."""
    there = near.cpu()
    kept: list[int] = []
    covered = torch.zeros(len(there), dtype=torch.bool)
    for i in range(len(there)):
        if not covered[i]:
            kept.append(i)
            covered |= there[i]
    return torch.tensor(kept, dtype=torch.long, device=near.device)


def beside(known: Tensor, points: Tensor) -> Tensor:
    """Return indices of the points (M, n), best first, distinct from one another and from known ones (F, n)."""
    kept = distinct(torch.cat([known.to(points), points]))
    return kept[kept >= len(known)] - len(known)


def extreme_images(
    rows: Tensor, low: Tensor, high: Tensor, number: int, generator: torch.Generator, channels: int = 1
) -> Tensor:
    """Find vertices (M, in) that no pixel holds alone, those first that their pixels pin best.

    rows: (N, in + 1), a basis of the span of the x̃ = [x; 1], in float64. low, high: (in,), the range of every pixel.
    number: of random directions. A vertex in the span of those before it is left out: it is a mixture of them. None is
    found in a span that holds an image of one colour, as where a client changes the contrast of its images: there that
    colour and the negatives of images are vertices as well as the images are.
    """
    span = _Polytope(rows.cpu(), low.cpu(), high.cpu())
    if span.holds_one_colour(channels):
        return rows.new_zeros(0, len(low))
    directions = torch.randn(number, len(low), generator=generator, dtype=torch.float64)
    pinned = [span.pinned(vertex) for vertex in span.vertices(directions)]
    sure = sorted((p for p in pinned if p[1] < EXTREME.leverage), key=lambda p: p[1])
    if not sure:
        return rows.new_zeros(0, len(low))
    found = torch.stack([point for point, _ in sure])
    found = found[distinct(found)]
    points = torch.nn.functional.pad(found, (0, 1), value=1.0)  # a mixture is an affine combination
    return found[independent(points, EXTREME.independent)].to(rows)


class _Polytope:
    """The points origin + slopes · z of the span, with pixels in their range."""

    def __init__(self, rows: Tensor, low: Tensor, high: Tensor) -> None:
        """Let images move in the span of rows (N, in + 1). Moves leave the last component of x̃ alone."""
        last = rows[:, -1]
        moves = torch.linalg.qr(last[:, None], mode="complete")[0][:, 1:]
        self.origin, self.slopes = last @ rows[:, :-1] / (last @ last), rows[:, :-1].T @ moves
        self.low, self.high, self.size = low, high, self.slopes.norm(dim=1)
        self.varies = self.size > EXTREME.constant * self.size.max()

    def holds_one_colour(self, channels: int) -> bool:
        """Return whether a point has the same value in all pixels of a channel."""
        points = torch.cat([self.origin[:, None], self.slopes], 1).unflatten(0, (channels, -1))
        spread = (points - points.mean(1, keepdim=True)).flatten(0, 1)
        origin, slopes = spread[:, 0], spread[:, 1:]
        left = origin - slopes @ (torch.linalg.pinv(slopes, rtol=EXTREME.degenerate) @ origin)
        return bool(left.norm() < EXTREME.degenerate * (self.high - self.low).norm())

    def vertices(self, directions: Tensor) -> Tensor:
        """Find the points (M, in) that are extreme in directions (D, in), their pixels in range but for rounding."""
        from scipy.optimize import linprog  # a third of a second, which few attacks need

        above = self.high + EXTREME.tolerance - self.origin
        below = self.origin - self.low + EXTREME.tolerance
        sides, limits = torch.cat([self.slopes, -self.slopes]).numpy(), torch.cat([above, below]).numpy()
        points = []
        for slope in (directions @ self.slopes).numpy():
            solved = linprog(slope, sides, limits, bounds=(None, None), method="highs")
            if solved.status == 0:
                points.append(self.origin + self.slopes @ torch.from_numpy(solved.x))
        return torch.stack(points) if points else self.origin.new_zeros(0, len(self.origin))

    def pinned(self, vertex: Tensor) -> tuple[Tensor, float]:
        """Return (the point (in,) that least squares on pixels at an end of their range determine, the largest leverage
        of one of them; 1 where these are too few)."""
        black = vertex < self.low + 2 * EXTREME.tolerance
        at_end = (black | (vertex > self.high - 2 * EXTREME.tolerance)) & self.varies
        end = torch.where(black, self.low, self.high)
        while int(at_end.sum()) > self.slopes.shape[1]:
            rows = self.slopes[at_end] / self.size[at_end, None]
            left, values, right = torch.linalg.svd(rows, full_matrices=False)
            if values[-1] < EXTREME.degenerate * values[0]:
                break
            solved = right.T @ (left.T @ ((end - self.origin)[at_end] / self.size[at_end]) / values)
            point = self.origin + self.slopes @ solved
            still = at_end & ((point - end).abs() < EXTREME.rounding)
            if bool((still == at_end).all()):
                return point, float(left.square().sum(1).max())
            at_end = still
        return vertex, 1.0
