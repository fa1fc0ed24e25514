"""Images from a noisy update: least squares under the zeros that rough images predict for their duals.

Noise hides which duals are exactly zero, and with it the certificates of `attacks.span_duals`. The pattern remains:
image i contributes nothing to a unit that it leaves inactive by a margin. The images are the least squares

    min ‖[ΔW | Δb] − Σ_i d_i x̃_iᵀ‖²  with d_i zero on those units,

over d and x̃ in turn: the maximum likelihood for Gaussian noise of equal variance. Without the zeros it would be the
singular value decomposition, in which any mixture of images does as well.
"""

import torch
from torch import Tensor

from attacks.update.intervals import EntryIntervals

MARGIN = 0.2  # of the rms input to the units: an image that far below zero at both ends leaves the unit inactive
ROUNDS, SAME_ZEROS = 24, 3  # of least squares; after so many the zeros are read again
ROUNDS_IN_CELLS = 72  # the same where the update is only known to lie in intervals
RIDGE = 1e-9  # of the mean square of a column
BATCH = 2**25  # entries of the normal matrices that are held at a time


def fit_images(
    update: Tensor, first: Tensor, images: Tensor, count: int, cells: EntryIntervals | None = None
) -> tuple[Tensor, float]:
    """(images (M, in), ‖Δ − Σ d x̃ᵀ‖ / ‖Δ‖), from rough ones (M, in), in float64.

    update: (W, in + 1), [ΔW | Δb]. first: (W, in + 1), [W₁ | b₁] at the initial parameters. count: N; where M < N the
    rest of the update is left to N − M rows without zeros. cells: intervals of Δ's entries, where these are all that is
    known: Δ is then the point of the intervals that is nearest to the sum, in turn with the other two.
    """
    update, first = update.double(), first.double()
    number = len(images)
    points = torch.nn.functional.pad(images.double(), (0, 1), value=1.0)
    idle = _idle(points, first, first + update)
    duals = _masked_duals(update, points, idle)
    if count > number:
        rest = torch.linalg.svd(update - duals @ points, full_matrices=False)[2][: count - number]
        points = torch.cat([points, rest * points.norm(dim=1).mean()])
        idle = torch.cat([idle, idle.new_zeros(len(idle), count - number)], 1)
    for i in range(ROUNDS if cells is None else ROUNDS_IN_CELLS):
        if cells is not None and i:
            update = cells.nearest(duals @ points)
        duals = _masked_duals(update, points, idle)
        points = _solved(duals.T @ duals, duals.T @ update)
        points[:number] /= points[:number, -1:].clone()
        if i % SAME_ZEROS == SAME_ZEROS - 1:
            idle[:, :number] = _idle(points[:number], first, first + duals @ points)
    duals = _masked_duals(update, points, idle)
    left = (update if cells is None else cells.nearest(duals @ points)) - duals @ points
    return points[:number, :-1], float(left.norm() / update.norm())


def _idle(points: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """(W, M) bool: units that x̃ (M, in + 1) leaves inactive at both ends by the margin."""
    inputs = torch.maximum(points @ first.T, points @ last.T)
    return (inputs < -MARGIN * inputs.square().mean(1, keepdim=True).sqrt()).T


def _masked_duals(update: Tensor, points: Tensor, idle: Tensor) -> Tensor:
    """d (W, M), zero where idle, of least ‖Δ − d x̃‖: one small system per unit."""
    gram, right = points @ points.T, update @ points.T
    found = torch.empty_like(right)
    for units in torch.arange(len(update), device=update.device).split(max(1, BATCH // gram.numel())):
        active = (~idle[units]).to(gram.dtype)
        systems = gram * active[:, :, None] * active[:, None, :]
        systems.diagonal(dim1=1, dim2=2).add_(1 - active)
        found[units] = _solved(systems, (right[units] * active)[:, :, None])[:, :, 0]
    return found


def _solved(gram: Tensor, right: Tensor) -> Tensor:
    diagonal = torch.diagonal(gram, dim1=-2, dim2=-1)
    diagonal.add_(RIDGE * diagonal.mean(-1, keepdim=True))
    return torch.cholesky_solve(right, torch.linalg.cholesky(gram))
