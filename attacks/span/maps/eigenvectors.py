"""The smallest eigenvectors of a large symmetric operator that is known by its products alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from attacks.span.thresholds import MAP_KERNEL


def smallest_eigenvectors(
    apply: Callable[[Tensor], Tensor], start: Tensor, largest: float, cut: float
) -> tuple[Tensor, Tensor]:
    """(eigenvalues (d,), rising, orthonormal eigenvectors (d, n)) of a positive semidefinite operator.

    One pass of Chebyshev-filtered subspace iteration (Zhou et al. 2006): a polynomial that is at most 1 between `cut`
    and `largest` grows fastest below `cut`, so that the directions there outgrow all others. apply: rows (d, n) to
    their products. start: (d, n), random. largest: a bound on the eigenvalues.
    """
    rows = torch.linalg.qr(_filtered(apply, start, cut, largest * MAP_KERNEL.margin).T)[0].T
    products = apply(rows)
    values, turned = torch.linalg.eigh((rows @ products.T).double())
    return values, turned.T.to(rows) @ rows


def _filtered(apply: Callable[[Tensor], Tensor], rows: Tensor, low: float, high: float) -> Tensor:
    """T_k of the operator, shifted so that [low, high] becomes [−1, 1], applied to rows (d, n), up to a factor."""
    centre, radius = (high + low) / 2, (high - low) / 2
    before, now = rows.clone(), (centre * rows - apply(rows)) / radius
    for k in range(2, MAP_KERNEL.degree + 1):
        # T_k = 2 (centre − G) / radius · T_{k−1} − T_{k−2}, in the place of T_{k−2}
        following = before.neg_().add_(now, alpha=2 * centre / radius).sub_(apply(now), alpha=2 / radius)
        before, now = now, following
        if k % MAP_KERNEL.rescaled_every == 0:
            scale = now.norm(dim=1).max()
            before, now = before.div_(scale), now.div_(scale)
    return now
