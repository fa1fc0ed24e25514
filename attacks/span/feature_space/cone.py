"""Features behind a ReLU as vertices of a polytope in the span of an update: one linear program each.

What a ReLU or max pooling behind it lets through is nonnegative, and much of it is zero. The features h_i of N images
span the row space of the layer that they are fed to, and in the polytope

    { h in the row space : h ≥ 0, Σ h = 1 }

every one of them, scaled, is a vertex: N − 1 zeros make one, a feature vector has hundreds. A linear program with a
random objective ends at a vertex, and at those with many zeros most often. From there objectives Σ_k h_k / (h'_k + ε),
h' the vertex before, lead to vertices with more zeros (reweighting: Candès, Wakin and Boyd 2008).

**What certifies** is the layer's other side. After one SGD step Δ = Σ_i δ_i [h_i; 1]ᵀ, and the signal δ_i is zero at
the units z = W h_i + b that the ReLU behind the layer shuts. So the update's column space holds a vector that vanishes
at all units that h_i shuts, which the parameters sent tell. Where more units that moved are shut than there are images,
chance makes no such vector, and where there is but one, it is a signal: of h, or of an image that opens no unit that h
shuts, where h is a mixture (`silent_signals`).

**Peeling.** Without the signals that are known, the update's columns leave Σ_j δ_j [h_j; 1]ᵀ of the other images j,
whose row space is spanned by their features alone. The polytope gets smaller with every signal, and its vertices easier
to find. Once all signals are known, all features follow by solving Δ = Σ_i δ_i [h_i; 1]ᵀ for them: a vertex need not be
exact, nor even right, to give its signal.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from attacks.span.feature_space.network import UpdateFactors
from attacks.span.thresholds import CONE
from attacks.update.spectrum import SMALLEST_VALUE


def cone_features(factors: UpdateFactors, layer: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(features (F, D), share (F,)) of private images, F ≤ N, from the update of one SGD step.

    layer: (W, D + 1), [W | b] as it was sent, followed by a ReLU. share: of a signal's norm, at units that its
    features shut.
    """
    signals, vertices = _signals(factors, layer, generator)
    features = _features(factors, signals, vertices)
    # features hold a share of images whose signals are not known: those that do do not shut where their signal is zero
    shares = [_contradicted(factors, layer, *pair) for pair in zip(features, signals, strict=True)]
    share = features.new_tensor(shares)
    kept = share < CONE.silent_share
    return features[kept].clamp_min(0), share[kept]


def cone_vectors(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Private vectors (F, D), F ≤ R, of a layer that no ReLU follows: vertices that their zeros alone certify.

    rows: (R, D + 1), an orthonormal basis of the update [ΔW | Δb], or of ΔW with the sums of the rows behind: the last
    entry of a point gives a vertex its scale. An objective orthogonal to everything found is zero there, so that its
    minimum is another vertex.
    """
    found, barren = rows.new_zeros(0, rows.shape[1] - 1), 0
    while len(found) < len(rows) and barren < CONE.barren:
        barren += 1
        for vertex in _vertices(rows, generator, found):
            if float(vertex.min()) >= -CONE.negative * float(vertex.max()) and _is_pinned(rows.T, vertex):
                alike = torch.cosine_similarity(vertex[None], found)
                if not bool((alike > CONE.same).any()):
                    found, barren = torch.cat([found, vertex[None]]), 0
                break
    return found.clamp_min(0)


def silent_signals(factors: UpdateFactors, layer: Tensor, features: Tensor, surplus: int) -> Tensor:
    """The vectors (k, R), orthonormal and in the coordinates of `factors.left`, of the update's column space that
    vanish at the units that features (D,) shut; k is 0 where these are not so many more than R."""
    shut = _shut(factors, layer, features)
    left = factors.left[shut]
    if len(left) < left.shape[1] + surplus:
        return left.new_zeros(0, left.shape[1])
    few = left.shape[1] - len(left)
    _, values, signals = torch.linalg.svd(left, full_matrices=few > 0)
    values = torch.nn.functional.pad(values, (0, max(0, few)))
    return signals[values < CONE.silent_share]


def _shut(factors: UpdateFactors, layer: Tensor, features: Tensor) -> Tensor:
    """(W,) bool: the units that moved and that features (D,) shut beyond rounding."""
    fed = layer[:, :-1] @ features + layer[:, -1]
    return (fed < -CONE.rounding * fed.square().mean().sqrt()) & (factors.left.abs().amax(1) > SMALLEST_VALUE)


def _contradicted(factors: UpdateFactors, layer: Tensor, features: Tensor, signal: Tensor) -> float:
    """The share of a signal (R,) that lies on units that features (D,) shut; 1 where features are negative."""
    if float(features.min()) < -CONE.negative * float(features.max()):
        return 1.0
    return float((factors.left[_shut(factors, layer, features)] @ signal).norm())


def _signals(factors: UpdateFactors, layer: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Signals (F, R) of different images, of length 1, in the coordinates of `factors.left`, and the vertices (F, D)
    that gave them."""
    size, width = len(factors.values), factors.rows.shape[1] - 1
    known, rows, barren = factors.values.new_zeros(0, size), factors.rows, 0
    vertices = known.new_zeros(0, width)
    while len(known) < size and barren < CONE.barren:
        barren += 1
        for vertex in _vertices(rows, generator, vertices[:0]):
            surplus = CONE.surplus[0 if _is_pinned(rows.T, vertex) else 1]
            silent = silent_signals(factors, layer, vertex, surplus if len(rows) > 1 else -size)
            # an image that opens no unit that h shuts has its signal among them, too
            silent = _without(silent, known[(known @ silent.T).norm(dim=1) > 1 - CONE.silent_share])
            if len(silent) == 1:
                known, barren = torch.cat([known, silent]), 0
                vertices = torch.cat([vertices, vertex.to(known)[None]])
                rows = torch.linalg.svd(_peeled(factors, known), full_matrices=False)[2][: size - len(known)]
                break
    return known, vertices


def _without(rows: Tensor, known: Tensor) -> Tensor:
    """An orthonormal basis of what the span of rows (k, R), orthonormal ones, has beside known ones (F, R) in it."""
    if not len(known) or not len(rows):
        return rows
    inside = torch.linalg.qr((known @ rows.T).T)[0]
    left = torch.linalg.svd(torch.eye(len(rows)).to(rows) - inside @ inside.T)[0]
    return left[:, : max(0, len(rows) - inside.shape[1])].T @ rows


def _peeled(factors: UpdateFactors, known: Tensor) -> Tensor:
    """The update (R, D + 1), in the coordinates of `factors.left`, without known signals (F, R)."""
    update = factors.values[:, None] * factors.rows
    away = torch.linalg.qr(known.T)[0]
    return update - away @ (away.T @ update)


def _features(factors: UpdateFactors, signals: Tensor, vertices: Tensor) -> Tensor:
    """The features (F, D) of images with the signals (F, R), as far as these determine them: [h; 1] is orthogonal to
    Δ⁺ δ_j for all other images j. Where some of these are missing, the zeros of the vertices (F, D) by which signals
    were found decide the rest."""
    if not len(signals):
        return factors.rows.new_zeros(0, factors.rows.shape[1] - 1)
    if len(signals) == len(factors.values):
        points = torch.linalg.solve(signals.T, factors.values[:, None] * factors.rows)
        return points[:, :-1] / points[:, -1:]
    shares, found = signals / factors.values, []
    for i, vertex in enumerate(vertices):
        others = torch.cat([shares[:i], shares[i + 1 :]])
        free = torch.linalg.svd(others, full_matrices=True)[2][len(others) :] @ factors.rows
        sharpened = _sharpened(free.T, vertex)
        found.append(sharpened if _is_pinned(free.T, sharpened) else torch.full_like(vertex, -1.0))
    return torch.stack(found)


def _vertices(rows: Tensor, generator: torch.Generator, found: Tensor) -> Iterator[Tensor]:
    """The vertices (D,) that reweighting passes from a random objective that is zero at those found (F, D), the ones
    with more zeros later.

    rows: (R, D + 1), an orthonormal basis of points [h; 1], whose last entry gives a vertex its scale.
    """
    basis = rows.T.cpu().numpy()
    drawn = torch.randn(len(basis) - 1, generator=generator, dtype=torch.float64).numpy()
    objective = basis[:-1].T @ drawn
    if len(found):
        known = np.linalg.qr((rows[:, :-1] @ found.T).cpu().numpy())[0]
        objective -= known @ (known.T @ objective)
    for number in range(CONE.reweighted):
        point = _solved(basis, objective)
        if point is None:
            break
        if point[-1] > 0:
            yield _sharpened(rows.T, torch.from_numpy(point[:-1] / point[-1]).to(rows))
        size = point[:-1].max() * CONE.shrinking ** (number + 1)
        objective = basis[:-1].T @ (1 / (point[:-1].clip(0) + size))


def _solved(basis: np.ndarray, objective: np.ndarray) -> np.ndarray | None:
    """The point [h; 1] (D + 1,), up to scale, of the polytope of a basis (D + 1, R) at which an objective (R,) is
    smallest; None where rounding leaves nothing of the polytope."""
    for tolerance in CONE.tolerance:
        solved = linprog(
            objective,
            A_ub=-basis[:-1],
            b_ub=np.full(len(basis) - 1, tolerance),
            A_eq=basis[:-1].sum(0)[None],
            b_eq=[1.0],
            bounds=(None, None),
        )
        if not solved.status:
            return basis @ solved.x
    return None


def _sharpened(basis: Tensor, vertex: Tensor) -> Tensor:
    """The h (D,) near a vertex (D,) whose zeros are sharpest among the points [h; 1] of a basis (D + 1, R): a minimum
    of Σ log(h² + ε²) as ε falls, by reweighted least squares."""
    for sharpness in CONE.sharpness:
        weights = 1 / (vertex.square() + (sharpness * vertex.max()).square())
        gram = basis[:-1].T * weights @ basis[:-1]
        solved = torch.linalg.solve(
            gram + CONE.ridge * gram.diagonal().mean() * torch.eye(len(gram)).to(gram), basis[-1]
        )
        point = basis @ solved
        vertex = point[:-1] / point[-1]
    return vertex


def _is_pinned(basis: Tensor, vertex: Tensor) -> bool:
    """Whether the zeros of a vertex (D,) alone tell it from the other points of a basis (D + 1, R), and none of the
    zeros is needed for it: a mixture of vertices is one by no more zeros than it takes."""
    zeros = basis[:-1][vertex.abs() <= CONE.zero * vertex.max()]
    if len(zeros) <= zeros.shape[1] or zeros.shape[1] == 1:
        return zeros.shape[1] == 1
    left, values, _ = torch.linalg.svd(zeros, full_matrices=False)
    leverage = left[:, :-1].square().sum(1)
    return bool(values[-1] < CONE.null * values[-2] and leverage.max() < CONE.leverage)
