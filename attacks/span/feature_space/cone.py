"""Features behind a ReLU as vertices of a polytope in the span of an update: one linear program each.

What a ReLU or max pooling behind it lets through is nonnegative, and much of it is zero. The features h_i of N images
span the row space of the layer that they are fed to, and in the polytope

    { h in the row space : h ≥ 0, Σ h = 1 }

every one of them, scaled, is a vertex: N − 1 zeros make one, a feature vector has hundreds. A linear program with a
random objective ends at a vertex, and at those with many zeros most often. From there objectives Σ_k h_k / (h'_k + ε),
h' the vertex before, lead to vertices with more zeros (reweighting: Candès, Wakin and Boyd 2008), and an objective
orthogonal to everything found is zero there, so that its minimum is another vertex.

**What accepts** (`silent_share`). After one SGD step Δ = Σ_i δ_i [h_i; 1]ᵀ, and δ_i is zero at the units z = W h_i + b
that the ReLU behind the layer shuts. So some vector of the update's column space vanishes at all units that h_i shuts,
which the parameters sent tell. Where more units that moved are shut than there are images, no other vertex has such a
vector, but for mixtures that let through all that one image does: they share its signal (`own_signals`).
"""

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from attacks.span.feature_space.network import UpdateFactors
from attacks.span.thresholds import CONE
from attacks.update.spectrum import SMALLEST_VALUE


def cone_vertices(
    rows: Tensor,
    accepts: Callable[[Tensor], bool],
    chosen: Callable[[list[Tensor]], list[Tensor]],
    generator: torch.Generator,
) -> Tensor:
    """The feature vectors (F, D), F ≤ N, that are `chosen` of the vertices that `accepts` accepts, of the polytope of
    rows (N, D + 1).

    rows: an orthonormal basis of the update [ΔW | Δb], whose last entry gives a vertex its scale, as it holds [h; 1].
    """
    basis = rows.double().T.cpu().numpy()
    found: list[Tensor] = []
    kept: list[Tensor] = []
    barren = 0
    while len(kept) < len(rows) and barren < CONE.barren:
        barren += 1
        drawn = torch.randn(basis.shape[0] - 1, generator=generator, dtype=torch.float64).numpy()
        objective = basis[:-1].T @ drawn
        if kept:
            known = np.linalg.qr(basis[:-1].T @ torch.stack(kept, 1).double().cpu().numpy())[0]
            objective -= known @ (known.T @ objective)
        vertex = _end(basis, objective, accepts, found)
        if vertex is not None:
            found.append(vertex.to(rows))
            before, kept = len(kept), chosen(found)
            barren = 0 if len(kept) > before else barren
    return torch.stack(kept) if kept else rows.new_zeros(0, rows.shape[1] - 1)


def silent_signal(factors: UpdateFactors, layer: Tensor, features: Tensor) -> tuple[float, Tensor, int]:
    """(share, signal (R,), units shut): the vector of the update's column space, in the coordinates of `factors.left`,
    that has the least of its norm on units shut by features (D,), that share, and the number of those units that moved.

    layer: (W, D + 1), [W | b] as it was sent. The share is 1 where too few units are shut to tell.
    """
    shut = (layer[:, :-1] @ features + layer[:, -1] <= 0) & (factors.left.abs().amax(1) > SMALLEST_VALUE)
    left = factors.left[shut]
    if len(left) <= left.shape[1]:
        return 1.0, left.new_zeros(left.shape[1]), len(left)
    _, values, signals = torch.linalg.svd(left, full_matrices=False)
    return float(values[-1]), signals[-1], len(left)


def own_signals(signals: Tensor, shut: Tensor) -> Tensor:
    """Which of the vertices have signals (F, R) of their own: (F,) bool. Where two share one, a mixture lets through
    what another image does and more: the one that shuts more units (F,) has it."""
    alike = (signals @ signals.T).abs() > CONE.same
    return ~(alike & (shut[None] > shut[:, None])).any(1)


def unmixed(factors: UpdateFactors, features: Tensor, signals: Tensor) -> Tensor:
    """Which features (F, D) hold none of the others: (F,) bool. g = [h; 1] and another image's signal δ (F, R) have
    gᵀ Δ⁺ δ = 0; of a mixture that is the other image's share."""
    points = torch.nn.functional.pad(features, (0, 1), value=1.0) @ factors.rows.T
    shares = points @ (signals / factors.values).T
    shares = shares / shares.diagonal()
    return (shares - torch.eye(len(shares)).to(shares)).abs().amax(1) < CONE.mixed


def _end(
    basis: np.ndarray, objective: np.ndarray, accepts: Callable[[Tensor], bool], found: list[Tensor]
) -> Tensor | None:
    """The vertex (D,) that reweighting leads to from an objective, if it is accepted and was not found before."""
    for number in range(CONE.reweighted):
        solved = linprog(
            objective,
            A_ub=-basis[:-1],
            b_ub=np.full(len(basis) - 1, CONE.tolerance),
            A_eq=basis[:-1].sum(0)[None],
            b_eq=[1.0],
            bounds=(None, None),
        )
        if solved.status:
            return None
        scaled = basis @ solved.x
        if scaled[-1] > 0:
            vertex = torch.from_numpy(scaled[:-1].clip(0) / scaled[-1])
            if accepts(vertex):
                alike = [float(torch.cosine_similarity(vertex, one.double().cpu(), dim=0)) for one in found]
                return vertex if max(alike, default=0.0) < CONE.same else None
        size = scaled[:-1].max() * CONE.shrinking ** (number + 1)
        objective = basis[:-1].T @ (1 / (scaled[:-1].clip(0) + size))
    return None
