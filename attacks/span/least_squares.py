"""Images from a noisy update: least squares under the zeros that rough images predict for their duals.

Noise hides which duals are zero, so that none passes the sparsity test. The pattern remains: image i contributes
nothing to a unit that it leaves inactive by a margin. The images are the least squares

    min ‖[ΔW | Δb] − Σ_i d_i x̃_iᵀ‖²  with d_i zero on those units,

over d and x̃ in turn: the maximum likelihood for Gaussian noise of equal variance. Without the zeros it would be the
singular value decomposition, in which any mixture of images does as well.
"""

import torch
from torch import Tensor

from attacks.span.thresholds import FIT
from attacks.update.intervals import EntryIntervals

BATCH = 2**25  # entries of the normal matrices that are held in memory at a time


def fit_images(
    update: Tensor, first: Tensor, images: Tensor, count: int, intervals: EntryIntervals | None = None
) -> tuple[Tensor, float]:
    """The images (M, in) that fit the update, from rough ones (M, in), and ‖Δ − Σ d x̃ᵀ‖ / ‖Δ‖, in float64.

    update: (W, in + 1), [ΔW | Δb]. first: (W, in + 1), [W₁ | b₁] at the initial parameters. count: N; where M < N the
    rest of the update is left to N − M rows without zeros. intervals: of Δ's entries, where they are all that is known:
    Δ is then the point of the intervals that is nearest to the sum, in turn with the other two.
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
    for i in range(FIT.iterations if intervals is None else FIT.iterations_in_intervals):
        if intervals is not None and i:
            update = intervals.nearest(duals @ points)
        duals = _masked_duals(update, points, idle)
        points = _solved(duals.T @ duals, duals.T @ update)
        points[:number] /= points[:number, -1:].clone()
        if i % FIT.zeros_kept == FIT.zeros_kept - 1:
            idle[:, :number] = _idle(points[:number], first, first + duals @ points)
    duals = _masked_duals(update, points, idle)
    left = (update if intervals is None else intervals.nearest(duals @ points)) - duals @ points
    return points[:number, :-1], float(left.norm() / update.norm())


def _idle(points: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Which units x̃ (M, in + 1) leaves inactive by the margin at both ends: (W, M) bool."""
    inputs = torch.maximum(points @ first.T, points @ last.T)
    return (inputs < -FIT.inactive_margin * inputs.square().mean(1, keepdim=True).sqrt()).T


def _masked_duals(update: Tensor, points: Tensor, idle: Tensor) -> Tensor:
    """The d (W, M) of least ‖Δ − d x̃‖ that are zero where idle, from one small system per unit."""
    gram, right = points @ points.T, update @ points.T
    found = torch.empty_like(right)
    for units in torch.arange(len(update), device=update.device).split(max(1, BATCH // gram.numel())):
        active = (~idle[units]).to(gram.dtype)
        systems = gram * active[:, :, None] * active[:, None, :]
        systems.diagonal(dim1=1, dim2=2).add_(1 - active)
        found[units] = _solved(systems, (right[units] * active)[:, :, None])[:, :, 0]
    return found


def _solved(gram: Tensor, right: Tensor) -> Tensor:
    """Solutions of normal equations, to whose diagonal a ridge is added in place."""
    diagonal = torch.diagonal(gram, dim1=-2, dim2=-1)
    diagonal.add_(FIT.ridge * diagonal.mean(-1, keepdim=True))
    return torch.cholesky_solve(right, torch.linalg.cholesky(gram))
