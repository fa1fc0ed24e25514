"""A matrix of low rank from intervals of its entries, by alternating least squares.

Of ‖X − Π(X)‖², Π the nearest point of the intervals (and a little inwards of it), over X = A Bᵀ, with A and B found in
turn while Π(X) is held. Entries without an interval do not count: where the others are points, this is the usual
completion of a masked matrix (Jain, Netrapalli and Sanghavi 2013). It starts shrunk, with ‖A‖² + ‖B‖² added (Hastie,
Mazumder, Lee and Zadeh 2015), which keeps what few entries determine from running away.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.defended import Cells

ROUNDS = 100
SHRUNK, LESS = (
    0.1,
    0.85,
)  # shrinkage of the first round, relative to the largest singular value, and by how much it falls
SPARE = 1.5  # known entries of a row per unknown, or the row is left out: it would be wrong
SETTLED = 1e-5  # relative change of the matrix between two rounds that ends the iteration
EXACT = 1e-7  # misfit relative to the matrix, below which float32 parameters tell no more; shrinkage that is none
RIDGE = 1e-9  # of the mean square of a factor's column
INSIDE = 0.1  # weight of an entry that lies inside its interval: it is held where it is, but may move
CHEAPLY = (
    64  # rank above which all have weight 1, where all have intervals: slower to settle, but one system for all rows
)
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
    matrix, misfit = a @ b.T, 0.0
    before = matrix
    flipped = Cells(cells.lowest.T, cells.highest.T)
    for i in range(rounds):
        shrinkage = float(values[0]) * share * SHRUNK * LESS**i
        a = _solved(cells, known, matrix, b, a, shrinkage)
        b = _solved(flipped, known.T, b @ a.T, a, b, shrinkage)
        matrix = a @ b.T
        length = matrix.norm().clamp_min(1e-300)
        misfit = float((matrix - cells.nearest(matrix))[known].norm() / length)
        if misfit < EXACT or (SHRUNK * LESS**i < EXACT and float((matrix - before).norm() / length) < SETTLED):
            break
        before = matrix
    return Completed(matrix, misfit)


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
    error(rank)
    while 2 * rank <= most and error(2 * rank) < min(cache.values()) / BETTER:
        rank *= 2
    best = min(cache.values())
    high = min(tried for tried, left in cache.items() if left < best / BETTER)
    low = high // 2
    while high - low > 1:  # the error is flat from the true rank on, or rises
        middle = (low + high) // 2
        if error(middle) < best / BETTER:
            high = middle
        else:
            low = middle
    return high


def _solved(cells: Cells, known: Tensor, matrix: Tensor, factor: Tensor, own: Tensor, shrinkage: float) -> Tensor:
    """A (m, r) of least Σ (A Bᵀ − target)² + shrinkage ‖A‖² over known entries, from A Bᵀ (m, n), B (n, r) and A."""
    target = cells.target(matrix)
    rank = factor.shape[1]
    ridge = RIDGE * factor.square().sum() / rank + 1e-300
    damping = (ridge + shrinkage) * torch.eye(rank, dtype=own.dtype, device=own.device)
    if rank > CHEAPLY and bool(known.all()):
        return torch.cholesky_solve(
            (target @ factor + ridge * own).T, torch.linalg.cholesky(factor.T @ factor + damping)
        ).T
    inside = (cells.nearest(matrix) == matrix) & (cells.lowest < cells.highest)
    weight = torch.where(known, torch.where(inside, INSIDE, 1.0), 0.0).to(matrix.dtype)
    products = (factor[:, :, None] * factor[:, None, :]).flatten(1)
    found = torch.empty_like(own)
    for rows in torch.arange(len(own), device=own.device).split(max(1, BATCH // rank**2)):
        gram = (weight[rows] @ products).unflatten(1, (rank, rank)) + damping
        right = (weight[rows] * target[rows]) @ factor + ridge * own[rows]
        found[rows] = torch.cholesky_solve(right[:, :, None], torch.linalg.cholesky(gram))[:, :, 0]
    return found
