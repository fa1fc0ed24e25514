"""The directions c whose duals L c are sparsest (`attacks.span.sparsity.dual_space`): one for every private image.

An approximate image y tells which units are inactive, the surest those farthest from activation, and c is the sparsest
L c on them with y · c = 1 (so that the duals of no other image will do): the least Σ_r log((l_r · c)² + ε²) for falling
ε, by iteratively reweighted least squares (Candès, Wakin and Boyd 2008); the usual Σ_r |l_r · c| fails on clients that
drift far, where a unit that is inactive at both ends of training need not have been so in between.
"""

import math

import torch
from torch import Tensor

from attacks.span.sparsity.dual_space import DualSpace
from attacks.span.thresholds import DUAL


def sparsest(space: DualSpace, coordinates: Tensor, sure: Tensor, known: Tensor) -> Tensor:
    """The c (M, N) of unit length with L c as sparse as possible on the units that candidates y (M, N) leave inactive.

    sure: (M,) bool, which candidates are close to a private image. known: (F, N), the y of images that are found. The
    start is the c of least energy on those units that nearly avoids known and other sure images, as y_j · c = 0.
    """
    unit = coordinates / coordinates.norm(dim=1, keepdim=True)
    others = torch.cat([known / known.norm(dim=1, keepdim=True), unit[sure]])
    avoid = others.T @ others
    found = [
        _best_of_starts(space, units, own, avoid - certain * own.outer(own), len(DUAL.start_shares) if certain else 1)
        for units, own, certain in zip(space.inactive(coordinates), unit, sure.tolist(), strict=True)
    ]
    return torch.stack(found) if found else coordinates


def retry_doubtful(space: DualSpace, coordinates: Tensor, directions: Tensor) -> Tensor:
    """The c (F, N), doubtful ones sought again from images that the others make exact until none gains a zero.

    coordinates: (F, N), the rough y of the images. A mixture a c_i + b c_j can pass for the image i where c_j is known;
    y_i, orthogonal to every other direction, is then exact all the same, and with it the units i leaves inactive.
    """
    directions = purified(space, directions)
    doubtful = fewest_zeros(space, directions)
    while len(doubtful):
        y = space.disentangle(coordinates, directions)
        unit = y / y.norm(dim=1, keepdim=True)
        others = [torch.cat([unit[:j], unit[j + 1 :]]) for j in doubtful.tolist()]
        candidates = zip(space.inactive(y[doubtful]), unit[doubtful], others, strict=True)
        sought = torch.stack([_best_of_starts(space, units, own, known.T @ known) for units, own, known in candidates])
        better = space.zeros(sought) > space.zeros(directions[doubtful])
        doubtful, sought = doubtful[better], sought[better]
        directions = directions.index_copy(0, doubtful, sought)
    return directions


def fewest_zeros(space: DualSpace, directions: Tensor) -> Tensor:
    """Indices of the doubtful quarter of the c (F, N): those with the fewest zeros."""
    return space.zeros(directions).argsort(stable=True)[: math.ceil(DUAL.doubtful * len(directions))]


def purified(space: DualSpace, directions: Tensor) -> Tensor:
    """The c (F, N), each freed from what the others are mixed into it, as long as that brings zeros.

    Where c_i is a mixture of another c and c_j, (L c_i)_r / (L c_j)_r is one and the same number t on all units
    where that other dual is zero and that of j is not: c_i − t c_j, for the most frequent ratio, has the zeros.
    """
    mixed = torch.arange(len(directions), device=directions.device)
    while len(mixed) and len(directions) > 1:
        duals = directions @ space.left.T
        pure = torch.stack([_purest(space, directions, duals, i) for i in mixed.tolist()])
        better = space.zeros(pure) > space.zeros(directions[mixed])
        mixed = mixed[better]
        directions = directions.index_copy(0, mixed, pure[better])
    return directions


def _purest(space: DualSpace, directions: Tensor, duals: Tensor, index: int) -> Tensor:
    """The c (N,) of this index less the one of its nearest neighbours whose removal leaves the most zeros.

    duals: (F, W), L c of the directions (F, N).
    """
    own = directions[index]
    overlaps = (directions @ own).abs()
    overlaps[index] = -1
    nearest = overlaps.argsort(descending=True, stable=True)[: min(DUAL.mixed, len(directions) - 1)]
    others, parts, tolerance = directions[nearest], duals[nearest], space.tolerance(own[None])[0, 0]
    zero = duals[index].abs() < tolerance
    if zero.all():
        return own
    share = torch.where(parts.abs() > space.tolerance(others), duals[index] / parts, torch.inf)
    width = tolerance / parts.square().mean(1, keepdim=True).sqrt()
    ratios = share[:, ~zero].sort(dim=1).values
    votes = torch.searchsorted(ratios, ratios + width, right=True)
    votes -= torch.arange(ratios.shape[1], device=ratios.device)
    most, first = torch.where(ratios.isfinite(), votes, 0).max(1, keepdim=True)
    middle = first + votes.gather(1, first) // 2
    mixed = most > ((share.abs() < width / 2) & zero).sum(1, keepdim=True)  # else most say: it is not
    ratio = torch.where(mixed, ratios.gather(1, middle), 0).nan_to_num(posinf=0)
    pure = own - ratio * others
    length = pure.norm(dim=1, keepdim=True)
    zeros = space.zeros(pure / length, (duals[index] - ratio * parts) / length)
    return (pure / length)[zeros.argmax()]


def _best_of_starts(space: DualSpace, units: Tensor, own: Tensor, avoid: Tensor, starts: int = 1) -> Tensor:
    """The c (N,) of one candidate from several starts, of which the first that passes the test ends the search.

    units: (·, N), rows of L, the surest zeros first. own: (N,), y at unit length. avoid: (N, N), the Gram matrix of the
    y to be avoided. starts: how many are tried at most.
    """
    best = own
    for share in DUAL.start_shares[:starts]:
        surest = units[: max(int(share * len(units)), len(own))]
        c = _reweighted(space, units, own, _least(surest.T @ surest + DUAL.avoid_weight * avoid, own))
        if c is None:
            continue
        c = _trimmed(space, units, own, c)
        zeros = space.zeros(torch.stack([best, c]))
        best = c if zeros[1] > zeros[0] else best
        if zeros.max() > space.explained_zeros():
            break
    return best


def _reweighted(space: DualSpace, units: Tensor, own: Tensor, c: Tensor) -> Tensor | None:
    """The c (N,) of least Σ_r log((l_r · c)² + ε²) over `units`, from a start and as ε falls; None without hope."""
    enough, sure, rough = space.explained_zeros(), False, units.float()
    for i in range(DUAL.reweightings):
        duals = units @ c
        rms = duals.square().mean().sqrt()
        falling = DUAL.bluntest * (DUAL.sharpest / DUAL.bluntest) ** (i / (DUAL.reweightings - 1))
        epsilon = rms * (DUAL.sharpest if sure else falling)
        small = (duals.abs() < DUAL.small * rms).sum()
        if i == DUAL.checked_at:  # rounding may hide more than what is small
            hidden = (duals.abs() < space.tolerance(c[None])[0, 0]).sum()
            if torch.maximum(small, hidden) < DUAL.hope * enough:
                return None
        exact = sure or falling < DUAL.single  # before, weights are blunt, and single precision is enough
        last, c = c, _least(_weighted(units if exact else rough, 1 / (duals.square() + epsilon**2)), own)
        if sure:
            break
        sure = bool((small > enough) & (1 - (last @ c).abs() < DUAL.still))  # one question: each waits for a GPU
    return c


def _trimmed(space: DualSpace, units: Tensor, own: Tensor, c: Tensor) -> Tensor:
    """The c (N,) after least squares on the units alone that look like zeros, by a bound that falls to rounding."""
    zero = None
    for i in range(DUAL.trims):
        duals = (units @ c).abs()
        bound = DUAL.sharpest * 0.1**i * duals.square().mean().sqrt()
        zero, before = duals < torch.maximum(space.tolerance(c[None])[0, 0], bound), zero
        if before is None or not torch.equal(zero, before):
            c = _least(_weighted(units, zero.to(duals.dtype) + 1e-9), own)
    return c


def _weighted(units: Tensor, weight: Tensor) -> Tensor:
    """The Gram matrix (N, N) of weighted units, in float64, from products in their precision."""
    return ((units * (weight / weight.mean()).to(units)[:, None]).T @ units).double()


def _least(gram: Tensor, own: Tensor) -> Tensor:
    """The c (N,) of least c · gram c with own · c = 1, scaled to unit length; `own` where the matrix is singular."""
    gram.diagonal().add_(1e-13 * gram.diagonal().mean())
    factor, failed = torch.linalg.cholesky_ex(gram)
    c = torch.cholesky_solve(own[:, None], factor)[:, 0]
    return torch.where(failed == 0, c / c.norm(), own)  # not asked on the host, where a GPU would be waited for
