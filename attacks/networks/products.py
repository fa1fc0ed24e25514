"""Products with a matrix W that stays the same for thousands of iterations, each in its cheapest form.

W: (out, in). `forward` is x ↦ xWᵀ, (rows, in) → (rows, out); `backward` is x ↦ xW, (rows, out) → (rows, in).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.networks.probing import probe_generator


@dataclass(frozen=True)
class Product:
    """The two products with one matrix.

    rank: of the thin factors that would cost as much as this form does.
    """

    rank: float
    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Tensor]


def compress(weight: Tensor) -> Product:
    """Return W = left rightᵀ where this halves the multiplications at the dtype's precision (100 ulp), else W."""
    factors = low_rank(weight, 100 * torch.finfo(weight.dtype).eps, int(break_even_rank(weight.shape) / 2))
    if factors is None:
        return Product(break_even_rank(weight.shape), lambda x: x @ weight.T, lambda x: x @ weight)
    left, right = factors
    return Product(left.shape[1], lambda x: (x @ right) @ left.T, lambda x: (x @ left) @ right.T)


def break_even_rank(shape: torch.Size) -> float:
    """Return the rank at which two thin factors take as many multiplications as a matrix (m, n), (1/m + 1/n)⁻¹."""
    return shape.numel() / sum(shape)


def low_rank(matrix: Tensor, tolerance: float, max_rank: int) -> tuple[Tensor, Tensor] | None:
    """Return (left (m, r), right (n, r)) with ‖matrix − left rightᵀ‖₂ ≤ tolerance·‖matrix‖_F and r < max_rank, or None.

    A product ⟨matrix, DᵀA⟩ of `rows` rows is then off by at most √rows·tolerance·‖matrix‖_F·‖DᵀA‖_F; rounding in a
    client's float32 training spreads over all directions, of which no single one matters.

    A randomized range finder with two power iterations (Halko, Martinsson, Tropp 2011, algorithm 4.4), of a width that
    doubles until the singular values have fallen below the tolerance. 0.1 s for 1024 x 1024 on one core.
    """
    generator = probe_generator()
    threshold = tolerance * matrix.norm()
    width = 32 if bool(threshold.isfinite()) else matrix.numel()  # a diverged client: no factors, the loss is NaN
    while width // 2 < max_rank:
        sketch = torch.randn((matrix.shape[1], width), generator=generator, dtype=matrix.dtype).to(matrix.device)
        basis = torch.linalg.qr(matrix @ sketch).Q
        for _ in range(2):
            basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ basis).Q).Q
        u, values, vt = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
        rank = int((values > threshold).sum())
        if rank < min(width, max_rank):
            return basis @ (u[:, :rank] * values[:rank]), vt[:rank].T.contiguous()
        width *= 2
    return None
