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
shuts, where h is a mixture (`silent_signals`). Zeros certify, too: a vertex that is nobody's has just so many that it
is one, and stops being one without any of them (`_is_pinned`). That needs no unit, where nearly as many images as units
move.

**Peeling.** Without the signals that are known, the update's columns leave Σ_j δ_j [h_j; 1]ᵀ of the other images j,
whose row space is spanned by their features alone: the polytope gets smaller with every signal, and its vertices easier
to find. Once all signals are known, all features follow by solving Δ = Σ_i δ_i [h_i; 1]ᵀ for them: a vertex need not be
exact, nor even right, to give its signal.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attacks.span.feature_space.network import UpdateFactors
from attacks.span.thresholds import CONE
from attacks.update.spectrum import SMALLEST_VALUE


def cone_features(factors: UpdateFactors, layer: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return (features (F, D), share (F,)) of private images, F ≤ N, from the update of one SGD step.

    layer: (W, D + 1), [W | b] as it was sent, followed by a ReLU. share: of a signal's norm, at units that its
    features shut; 0 where zeros certify.
    """
    found = _Peeling(factors, layer)
    found.search(generator)
    features, shares = list[Tensor](), list[float]()
    for number, vertex in enumerate(found.vertices):
        rows = found.rows_beside(number)
        sharpened, signal = _sharpened(rows.T, vertex), found.signals[number]
        share = 1.0
        if found.pinned[number]:
            share = 0.0 if found.is_pinned_unpeeled(sharpened) else 1.0
        elif signal is not None and _is_pinned(rows.T, sharpened):
            # features may hold a share of images without a known signal: these do not shut where their signal is zero
            share = float((factors.left[_shut(factors, layer, sharpened)] @ signal).norm())
        if share < CONE.silent_share and _is_nonnegative(sharpened):
            features.append(sharpened.clamp_min(0))
            shares.append(share)
    return _stacked(features, factors), factors.rows.new_tensor(shares)


def cone_vectors(rows: Tensor, generator: torch.Generator) -> tuple[Tensor, int]:
    """Return (vectors (F, D), F ≤ R, how many of them, the first ones, are certified) of a layer that no ReLU follows.

    rows: (R, D + 1), an orthonormal basis of the update [ΔW | Δb], or of ΔW with the sums of the rows behind: the last
    entry of a point gives a vertex its scale. Zeros certify a vertex that is pinned; the others are those that stay
    one without any of their zeros, mixtures among them.
    """

    def certified(vertex: Tensor) -> bool:
        return _is_pinned(rows.T, vertex)

    def likely(vertex: Tensor) -> bool:
        return _left_without_one(rows.T, vertex) < CONE.null_without_one

    found = _nonnegative_vertices(rows, rows.new_zeros(0, rows.shape[1] - 1), certified, generator)
    every = _nonnegative_vertices(rows, found, likely, generator) if len(found) > 0 else found
    return every.clamp_min(0), len(found)


def _nonnegative_vertices(
    rows: Tensor, found: Tensor, passes: Callable[[Tensor], bool], generator: torch.Generator
) -> Tensor:
    """Return the vertices found (F, D), and further ones that pass a test. An objective orthogonal to everything found
    is zero there, so that its minimum is another vertex."""
    barren = 0
    while len(found) < len(rows) and barren < CONE.barren:
        barren += 1
        for vertex in _vertices(rows, generator, found):
            if _is_nonnegative(vertex) and passes(vertex):
                if not bool((torch.cosine_similarity(vertex[None], found) > CONE.same_vector).any()):
                    found, barren = torch.cat([found, vertex[None]]), 0
                break
    return found


@dataclass
class _Peeling:
    """What a search has found.

    vertices: of F images, (D,) each.
    pinned: whether zeros certify them.
    signals: (R,), of length 1, in the coordinates of `factors.left`, or None where none is known.
    """

    factors: UpdateFactors
    layer: Tensor
    vertices: list[Tensor] = field(default_factory=list)
    pinned: list[bool] = field(default_factory=list)
    signals: list[Tensor | None] = field(default_factory=list)

    def search(self, generator: torch.Generator) -> None:
        """Take in what each objective leads to, until all images are found or many objectives lead to nothing new."""
        size, barren = len(self.factors.values), 0
        while len(self.vertices) < size and barren < CONE.barren:
            barren += 1
            rows, lone = self.rows_beside(), [i for i, signal in enumerate(self.signals) if signal is None]
            for vertex in _vertices(rows, generator, self._stacked_vertices(lone)):
                if self._takes(vertex, rows, lone):
                    barren = 0
                    break

    def rows_beside(self, but: int | None = None) -> Tensor:
        """Return the row space (R − k, D + 1), orthonormal, without the k images of known signals, `but` aside."""
        known = [signal for i, signal in enumerate(self.signals) if signal is not None and i != but]
        if not known:
            return self.factors.rows
        update, away = self.factors.values[:, None] * self.factors.rows, torch.linalg.qr(torch.stack(known).T)[0]
        left = len(self.factors.values) - len(known)
        return torch.linalg.svd(update - away @ (away.T @ update), full_matrices=False)[2][:left]

    def _takes(self, vertex: Tensor, rows: Tensor, lone: list[int]) -> bool:
        """Return whether a vertex (D,) of the row space (k, D + 1) brings a signal or an image that was not known."""
        pinned, size = _is_pinned(rows.T, vertex), len(self.factors.values)
        certified = pinned and _is_nonnegative(vertex) and self.is_pinned_unpeeled(vertex)
        surplus = CONE.surplus[0 if pinned else 1] if len(rows) > 1 else -size
        silent = silent_signals(self.factors, self.layer, vertex, surplus)
        signal = silent[0] if len(silent) == 1 else None
        alike = torch.cosine_similarity(vertex[None], self._stacked_vertices(lone)) > CONE.same
        if bool(alike.any()):
            self.signals[lone[int(alike.int().argmax())]] = signal
            if signal is None:
                return False
        elif signal is not None or certified:
            self.vertices.append(vertex.to(rows))
            self.pinned.append(certified)
            self.signals.append(signal)
        else:
            return False
        return True

    def is_pinned_unpeeled(self, vertex: Tensor) -> bool:
        """Return whether the zeros of a vertex (D,) tell it in the whole row space, too, where noise is least."""
        return _left_by_zeros(self.factors.rows.T, vertex) < CONE.null_unpeeled

    def _stacked_vertices(self, numbers: list[int]) -> Tensor:
        return _stacked([self.vertices[i] for i in numbers], self.factors)


def _stacked(features: list[Tensor], factors: UpdateFactors) -> Tensor:
    return torch.stack(features) if features else factors.rows[:0, :-1]


def silent_signals(factors: UpdateFactors, layer: Tensor, features: Tensor, surplus: int) -> Tensor:
    """Return the vectors (k, R), orthonormal and in the coordinates of `factors.left`, of the update's column space
    that vanish at the units that features (D,) shut; k is 0 where these are not so many more than R."""
    left, size = factors.left[_shut(factors, layer, features)], len(factors.values)
    if len(left) < size + surplus:
        return factors.left.new_zeros(0, size)
    few = size - len(left)
    _, values, signals = torch.linalg.svd(left, full_matrices=few > 0)
    values = torch.nn.functional.pad(values, (0, max(0, few)))
    return signals[size - int((values < CONE.silent_share).sum()) :]


def _shut(factors: UpdateFactors, layer: Tensor, features: Tensor) -> Tensor:
    """Return which units moved and are shut by features (D,) beyond rounding, (W,) bool."""
    fed = layer[:, :-1] @ features + layer[:, -1]
    return (fed < -CONE.rounding * fed.square().mean().sqrt()) & (factors.left.abs().amax(1) > SMALLEST_VALUE)


def _is_nonnegative(features: Tensor) -> bool:
    return float(features.min()) >= -CONE.negative * float(features.max())


def _vertices(rows: Tensor, generator: torch.Generator, found: Tensor) -> Iterator[Tensor]:
    """Yield the vertices (D,) that reweighting passes from a random objective that is zero at those found (F, D), the
    ones with more zeros later.

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
    """Find the point [h; 1] (D + 1,), up to scale, of the polytope of a basis (D + 1, R) at which an objective (R,) is
    smallest; None where rounding leaves nothing of the polytope."""
    from scipy.optimize import linprog  # a third of a second, which few attacks need

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
    """Find the h (D,) near a vertex (D,) whose zeros are sharpest among the points [h; 1] of a basis (D + 1, R): a
    minimum of Σ log(h² + ε²) as ε falls, by reweighted least squares."""
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
    """Return whether the zeros of a vertex (D,) alone tell it from the other points of a basis (D + 1, R), and none of
    the zeros is needed for it: a mixture of vertices is one by no more zeros than it takes."""
    zeros = _zeros(basis, vertex)
    if len(zeros) <= zeros.shape[1] or zeros.shape[1] == 1:
        return zeros.shape[1] == 1
    leverage = torch.linalg.svd(zeros, full_matrices=False)[0][:, :-1].square().sum(1)
    return _left_by_zeros(basis, vertex) < CONE.null and bool(leverage.max() < CONE.leverage)


def _left_without_one(basis: Tensor, vertex: Tensor) -> float:
    """Compute what the zeros of a vertex (D,) leave of it, as `_left_by_zeros`, without the one that tells most."""
    zeros = _zeros(basis, vertex)
    if len(zeros) <= zeros.shape[1] or zeros.shape[1] == 1:
        return 1.0 if zeros.shape[1] > 1 else 0.0
    leverage = torch.linalg.svd(zeros, full_matrices=False)[0][:, :-1].square().sum(1).max()
    return _left_by_zeros(basis, vertex) / float((1 - leverage).clamp_min(SMALLEST_VALUE).sqrt())


def _left_by_zeros(basis: Tensor, vertex: Tensor) -> float:
    """Return what a vertex (D,) keeps on its zero rows, over the least any other point keeps."""
    values = torch.linalg.svdvals(_zeros(basis, vertex))
    return float(values[-1] / values[-2]) if len(values) == basis.shape[1] > 1 else 1.0


def _zeros(basis: Tensor, vertex: Tensor) -> Tensor:
    """Return the rows of a basis (D + 1, R) at which a vertex (D,) looks zero."""
    return basis[:-1][vertex.abs() <= CONE.zero * vertex.max()]
