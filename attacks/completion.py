"""A matrix of low rank from intervals of its entries, by alternating least squares.

Of ‖X − Π(X)‖², Π the nearest point of the intervals, over X = A Bᵀ. An entry counts in full where X leaves its interval or
the interval is a point; inside, X is held where it is by a small weight. Entries without an interval do not count: on
points alone it is the usual completion of a masked matrix (Jain, Netrapalli and Sanghavi 2013).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.defended import Cells

ROUNDS = 100
SHRUNK, LESS = 0.1, 0.85  # shrinkage of the first round, relative to the largest singular value, and by how much it falls
SPARE = 1.5  # known entries of a row per unknown, or the row is left out: it would be wrong
INSIDE = 0.1  # weight of an entry that lies inside its interval
SETTLED = 1e-4  # relative change of the misfit between two rounds that ends the iteration
EXACT = 1e-7  # misfit relative to the matrix, below which float32 parameters tell no more
RIDGE = 1e-9  # of the mean square of a factor's column
BATCH = 2**25  # entries of the normal matrices that are held at a time
HELD_OUT = 0.05  # of the known entries
BETTER = 0.7  # the held-out misfit has to fall to this share for a higher rank to be right


@dataclass(frozen=True)
class Completed:
    """matrix: (m, n), of the rank sought. misfit: ‖X − Π(X)‖ / ‖X‖."""

    matrix: Tensor
    misfit: float


def unknowns(rows: int, columns: int, rank: int) -> int:
    """Free numbers of a matrix (rows, columns) of that rank."""
    return rank * (rows + columns - rank)


def complete(cells: Cells, rank: int, rounds: int = ROUNDS) -> Completed:
    """The matrix of a rank that lies in the intervals, or nearest to them; rows of which nothing is known are zero."""
    known = cells.bounded()
    known = known & (known.sum(1, keepdim=True) >= SPARE * rank)
    start = torch.where(known, cells.middle(), 0)
    share = float(known.double().mean())
    left, values, right = torch.linalg.svd(start / max(share, 1e-12), full_matrices=False)
    a, b = left[:, :rank] * values[:rank].sqrt(), right[:rank].T * values[:rank, None].sqrt().T
    exact = cells.lowest == cells.highest
    before, misfit = float("inf"), float("inf")
    flipped = Cells(cells.lowest.T, cells.highest.T)
    for i in range(rounds):
        shrinkage = float(values[0]) * share * SHRUNK * LESS**i
        a = _solved(cells, exact, known, a @ b.T, b, a, shrinkage)
        b = _solved(flipped, exact.T, known.T, b @ a.T, a, b, shrinkage)
        matrix = a @ b.T
        misfit = float((matrix - cells.nearest(matrix))[known].norm() / matrix.norm().clamp_min(1e-300))
        if misfit < EXACT or (SHRUNK * LESS**i < SETTLED and abs(before - misfit) < SETTLED * misfit):
            break
        before = misfit
    return Completed(a @ b.T, misfit)


def find_rank(cells: Cells, most: int, generator: torch.Generator) -> int:
    """The rank at which the misfit on held-out entries stops falling: doubled until then, then bisected."""
    drawn = torch.rand(cells.lowest.shape, generator=generator).to(cells.lowest.device)
    hidden = cells.sent() & (drawn < HELD_OUT)
    seen = cells.without(hidden)
    values = cells.middle()[hidden]
    cache: dict[int, float] = {}

    def error(rank: int) -> float:
        if rank not in cache:
            cache[rank] = float((complete(seen, rank).matrix[hidden] - values).norm())
        return cache[rank]

    rank = 1
    while 2 * rank <= most and error(2 * rank) < BETTER * error(rank):
        rank *= 2
    low, high = rank // 2, min(2 * rank, most)
    while high - low > 1:  # the error is flat from the true rank on, or rises
        middle = (low + high) // 2
        best = min(cache.values())
        if error(middle) < best / BETTER:
            high = middle
        else:
            low = middle
    return high


def _solved(
    cells: Cells, exact: Tensor, known: Tensor, matrix: Tensor, factor: Tensor, own: Tensor, shrinkage: float
) -> Tensor:
    """A (m, r) of least Σ w (A Bᵀ − target)² + shrinkage ‖A‖², from the current A Bᵀ (m, n), B (n, r) and A."""
    target = cells.nearest(matrix)
    outside = exact | (target != matrix)
    weight = torch.where(known, torch.where(outside, 1.0, INSIDE), 0.0).to(matrix.dtype)
    rank = factor.shape[1]
    products = (factor[:, :, None] * factor[:, None, :]).flatten(1)
    found = torch.empty_like(own)
    ridge = RIDGE * factor.square().sum() / rank + 1e-300
    for rows in torch.arange(len(own), device=own.device).split(max(1, BATCH // rank**2)):
        gram = (weight[rows] @ products).unflatten(1, (rank, rank))
        right = (weight[rows] * target[rows]) @ factor + ridge * own[rows]
        gram.diagonal(dim1=1, dim2=2).add_(ridge + shrinkage)
        found[rows] = torch.cholesky_solve(right[:, :, None], torch.linalg.cholesky(gram))[:, :, 0]
    return found
