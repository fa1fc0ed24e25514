"""Images as extreme points: those of the first layer's span whose pixels lie in their range.

Where clients mix their images, every input is an affine combination of them, and the span of the inputs is that of the
images. Nothing in the update is any longer the contribution of one image; but within that span the points with pixels
in their range form a polytope, and an image with many black or white pixels is one of its vertices, at which many more
pixels are at an end of their range than the N − 1 that every vertex has. Linear programs in random directions find
vertices.
"""

import torch
from torch import Tensor

from attacks.span.search.descent import distinct
from attacks.span.thresholds import EXTREME, SPARSITY


def extreme_images(rows: Tensor, low: Tensor, high: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Vertices (M, in) at which more pixels are at an end of their range than choice explains, most such pixels first.

    rows: (N, in + 1), a basis of the span of the x̃ = [x; 1], in float64. low, high: (in,), the range of every pixel.
    number: of random directions. A vertex in the span of those before it is left out: it is a mixture of them.
    """
    directions = torch.randn(number, rows.shape[1] - 1, generator=generator, dtype=torch.float64)
    found = _vertices(rows.cpu(), low.cpu(), high.cpu(), directions)
    varies = (rows - rows[:, -1:] @ rows[:, -1:].T @ rows / rows[:, -1].square().sum()).norm(dim=0)[:-1].cpu()
    free = varies > EXTREME.constant * varies.max()
    ends = ((found < low.cpu() + 2 * EXTREME.tolerance) | (found > high.cpu() - 2 * EXTREME.tolerance)) & free
    count = ends.sum(1)
    order = count.argsort(descending=True, stable=True)
    order = order[distinct(found[order])]
    order = order[count[order] > SPARSITY.free_choices * len(rows)]
    return found[order][_independent(found[order])].to(rows)


def _vertices(rows: Tensor, low: Tensor, high: Tensor, directions: Tensor) -> Tensor:
    """The points (M, in) of the span that are extreme in directions (D, in), their pixels in range but for rounding."""
    from scipy.optimize import linprog  # a third of a second, which few attacks need

    pixels, last = rows[:, :-1].T, rows[:, -1]
    limits = torch.cat([high + EXTREME.tolerance, -low + EXTREME.tolerance]).numpy()
    sides, total = torch.cat([pixels, -pixels]).numpy(), last[None].numpy()
    points = []
    for slope in (directions @ pixels).numpy():
        solved = linprog(slope, sides, limits, total, [1.0], bounds=(None, None), method="highs")
        if solved.status == 0:
            points.append(pixels @ torch.from_numpy(solved.x))
    return torch.stack(points) if points else pixels.new_zeros(0, len(pixels))


def _independent(points: Tensor) -> list[int]:
    """Indices of the points (M, in) that are no affine combinations of those before them."""
    kept: list[int] = []
    basis = points.new_zeros(0, points.shape[1] + 1)
    for i, point in enumerate(torch.nn.functional.pad(points, (0, 1), value=1.0)):
        rest = point - (point @ basis.T) @ basis
        if rest.norm() > EXTREME.independent * point.norm():
            rest = rest - (rest @ basis.T) @ basis
            basis = torch.cat([basis, (rest / rest.norm())[None]])
            kept.append(i)
    return kept
