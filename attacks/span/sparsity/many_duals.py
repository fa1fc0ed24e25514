"""The search of `attacks.span.sparsity.sparse_duals` from many candidates at once: one product of matrices per step.

Where images are many for the width, hardly any candidate is close to one; but the sparsest dual of one candidate in a
few dozen is that of a private image all the same, and no other dual has as many zeros. So all candidates are tried, and
the number of zeros alone says which led anywhere.
"""

import torch
from torch import Tensor

from attacks.span.sparsity.dual_space import DualSpace
from attacks.span.thresholds import CROWDED, DUAL


def sparsest_of_many(space: DualSpace, coordinates: Tensor, known: Tensor) -> Tensor:
    """The c (M, N) of unit length with L c as sparse as possible on the units that candidates y (M, N) leave inactive.

    known: (F, N), the y of images that are found, which the start avoids.
    """
    own = torch.nn.functional.normalize(coordinates)
    found = own.clone()
    left = torch.arange(len(own), device=own.device)
    for share in DUAL.start_shares[: 1 if len(known) < CROWDED.all_starts_after * space.count else None]:
        found[left] = _from_start(space, coordinates[left], known, share)
        left = left[space.zeros(found[left]) <= space.explained_zeros()]
    return found


def _from_start(space: DualSpace, coordinates: Tensor, known: Tensor, share: float) -> Tensor:
    """The same from a start on that share of the inactive units, the surest ones."""
    own = torch.nn.functional.normalize(coordinates)
    if len(own) == 0:
        return own
    others = torch.nn.functional.normalize(known)
    nearest = space.nearest(coordinates)
    idle = (nearest < 0).to(own)
    surest = idle * (nearest <= nearest.quantile(share * idle.mean(), dim=1, keepdim=True))
    squares = PairProducts.of(space.left)
    c = _least(squares.gram(surest) + DUAL.avoid_weight * others.T @ others, own)
    for i in range(DUAL.reweightings):
        duals = c @ space.left.T
        epsilon = DUAL.bluntest * (DUAL.sharpest / DUAL.bluntest) ** (i / (DUAL.reweightings - 1)) * _rms(duals, idle)
        c = _least(squares.gram(idle / (duals.square() + epsilon**2)), own)
    for i in range(DUAL.trims):
        duals = (c @ space.left.T).abs()
        bound = torch.maximum(DUAL.sharpest * 0.1**i * _rms(duals, idle), space.tolerance(c))
        c = _least(squares.gram(idle * ((duals < bound).to(own) + 1e-9)), own)
    return c


class PairProducts:
    """The products of the entries of every row of L (W, N), from which weighted Gram matrices are linear: the lower
    triangles, (W, N (N + 1) / 2), as symmetric matrices need no more."""

    def __init__(self, products: Tensor, places: Tensor, count: int) -> None:
        self.products, self.places, self.count = products, places, count

    @classmethod
    def of(cls, left: Tensor) -> "PairProducts":
        row, column = places = torch.tril_indices(left.shape[1], left.shape[1], device=left.device)
        return cls(left[:, row] * left[:, column], places, left.shape[1])

    def gram(self, weights: Tensor) -> Tensor:
        """The lower triangles of Lᵀ diag(w) L, (M, N, N), for weights (M, W), first brought to a mean of one."""
        scaled = weights / weights.mean(1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        full = weights.new_zeros(len(weights), self.count, self.count)
        full[:, self.places[0], self.places[1]] = scaled @ self.products
        return full


def _rms(duals: Tensor, idle: Tensor) -> Tensor:
    """The root mean square (M, 1) of duals (M, W) on the inactive units."""
    return ((duals.square() * idle).sum(1, keepdim=True) / idle.sum(1, keepdim=True).clamp_min(1)).sqrt()


def _least(gram: Tensor, own: Tensor) -> Tensor:
    """The c (M, N) of least c · gram c with own · c = 1, scaled to unit length; `own` where a matrix is singular. Only
    the lower triangles of gram (M, N, N) are read."""
    diagonal = torch.diagonal(gram, dim1=1, dim2=2)
    diagonal += 1e-13 * diagonal.mean(1, keepdim=True)
    factor, failed = torch.linalg.cholesky_ex(gram)
    c = torch.cholesky_solve(own[:, :, None], factor)[:, :, 0]
    return torch.where(failed[:, None] == 0, torch.nn.functional.normalize(c), own)
