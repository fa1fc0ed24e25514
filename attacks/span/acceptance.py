"""Which images may be returned, and how exact they are made.

**As a set** (`ExplanationTest`): images are accepted where their features explain the second layer's update much better
than as many decoys do.

**One by one** (`certainty`): by the error bar that least squares put on a candidate's pixels. Near a candidate x its
features g are linear in it, with the slopes σ'(z) of its own units. Of the N − 1 directions in which a point of the
first layer's span can move, those are free that no other dual of known zeros forbids. With r = g − P g at x and A its
change along the free directions, m equations and K directions,

    σ² = ‖r‖² / (m − K),    E² = σ² tr(G (AᵀA)⁻¹),

G the Gram matrix of the directions in pixels: the expected squared distance of x from the point that r is the noise of
(ordinary least squares). A candidate that they would move by several E has not come to rest, and has no error bar.
The error of the first layer's update, rounding if nothing else, moves x besides, however many duals fix it
(`DualSpace.moved_by_noise`). Other minima of ρ leave a large r, or a large E. The F ratio of what r loses where all
N − 1 directions are free says whether the duals that fix x are those of images, and the zeros of its own dual whether
it is the image of this dual.
Images that a client first used after some steps fit the parameters of then: F is taken where it is lowest on the way
from the sent to the returned. Where all N duals are found and each keeps its direction whichever of its zeros is left
out (`DualSpace.leverage`), the first layer alone determines the images, and F is not asked.

Both rest on signals δ_i of the second layer's units that are independent: δ_i = s δ_j makes d_i − s d_j sparse, like a
dual, and the second layer's update holds h(x_i) and h(x_j) as one sum. Where that update shows too few directions to
exclude it (`directions_shown`), only images are returned whose own features lie in it to rounding, and, where all N
duals are found, those whose dual is in one ratio to no other (`DualSpace.one_ratio`).

Where images are missing, a candidate may be the mean of two whose signals are alike (those of ReLU never are): the
first layer shows no more of them, and a network that is nearly linear between them has the mean of their features at
the mean of the images. So ρ has to be below what such a mean would have, as the candidates lie around each other
(`with_means`). In noise, images may be missing that N does not count: all are held where two in the place of one would
not stand out (`standing_out`).

**In noise** (`fit_images`): noise hides which duals are zero, so that none passes the sparsity test. The pattern
remains, as image i contributes nothing to a unit that it leaves inactive by a margin. The images are the least squares

    min ‖[ΔW | Δb] − Σ_i d_i x̃_iᵀ‖²  with d_i zero on those units,

over d and x̃ in turn: the maximum likelihood for Gaussian noise of equal variance. Without the zeros it would be the
singular value decomposition, in which any mixture of images does as well.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from attacks.networks.mlp import Activation
from attacks.span.evidence.layers import FirstLayers
from attacks.span.search.candidates import Candidates, decoys_of
from attacks.span.search.problems import SpanTest, by_round, inverse_gram, outside, outside_rounds
from attacks.span.sparse_duals import DualSpace, complement
from attacks.span.stages import Acceptance
from attacks.span.thresholds import ACCEPTANCE, CERTAINTY, EVIDENCE, FIT, SEARCH
from attacks.update.intervals import EntryIntervals

BATCH = 2**25  # entries of the normal matrices that are held in memory at a time


@dataclass(frozen=True)
class ExplanationTest:
    """Whether images explain the second layer's update much better than as many decoys do.

    candidates: those that the search found.
    update: (R, out, W + 1), of the rounds that test.
    noise: ‖E‖ / ‖Δ‖ of noise in it, which no set of images explains.
    rounds: the number of rounds that test; R may list one of them at several points of its path.
    fed_again: returns for images (M, in) what they feed further uses of the second layer's weight: R × (…, W + 1), or
        nothing where there are none.
    """

    candidates: Candidates
    update: Tensor
    noise: float = 0.0
    rounds: int = 1
    fed_again: Callable[[Tensor], Sequence[Tensor]] = lambda images: ()

    def judge(self, images: Tensor, generator: torch.Generator) -> Acceptance:
        """Return the images (M, in), in float32, with the reason why they may not be returned, if there is one."""
        if not len(images):
            threshold = self.candidates.threshold
            reason = f"nothing returned: no candidate has ρ below {threshold:.2g}"
            return replace(Acceptance.none(reason, 1.0), images=images.float())
        left = self.relative_residual(images)
        by_chance = self.relative_residual(decoys_of(images, len(images), generator))
        passed = len(self.candidates.passed)
        # of one image the first layer shows one dual alone, whose zeros are its dead units, whatever the optimizer
        enough = len(images) > 1 and passed >= ACCEPTANCE.few_sparse * len(images)
        most = ACCEPTANCE.unexplained_sparse if enough else ACCEPTANCE.unexplained
        acceptance = Acceptance(images.float(), images.new_zeros(0), None, left)
        signal, null = (max(share**2 - self.noise**2, 0.0) ** 0.5 for share in (left, by_chance))
        if signal < most * null or (enough and self.rounds == 1):
            return acceptance
        reason = (
            f"nothing returned: {len(images)} candidates leave {left:.2g} of the second layer's update, "
            f"mixtures of them {by_chance:.2g} (at most {most:g} of that beyond noise of {self.noise:.2g}), and "
            f"{passed} have sparse duals"
        )
        return replace(acceptance, reason=reason)

    def relative_residual(self, images: Tensor) -> float:
        """Return ‖Δ − Δ P‖ / ‖Δ‖, P projecting onto the images' features in every round: the least over all duals."""
        if not len(images):
            return 1.0
        features = self.candidates.test.features(images.float()).split(self.update.shape[2], 1)
        if again := self.fed_again(images.float()):
            features = [torch.cat(both) for both in zip(features, again, strict=True)]
        bases = [torch.linalg.qr(part.T)[0].T for part in features]
        rest = torch.stack([outside(delta, basis) for delta, basis in zip(self.update, bases, strict=True)])
        return float(rest.norm() / self.update.norm())


def usual_distance(images: Tensor) -> float:
    """Return the median distance between images (M, in), or the length of the only one."""
    distances = torch.pdist(images)
    return float(distances.median() if len(distances) else images.norm())


@dataclass(frozen=True)
class Certainty:
    """What determines each of M candidates.

    error: (M,), E at the parameters sent, an L2 distance in the network's input space; infinite where a candidate is
        not at rest, or directions outnumber equations.
    misfit: (M,), the F ratio, 0 where rounding is all that is left.
    residual: (M,), ρ at the parameters sent.
    contradicted: (M,), share of the zeros of its own dual on units that it activates before or after training; 0 for a
        candidate without a dual.
    moved: (M,), what the error of the first layer's update moves it by, an L2 distance like `error`.
    mixed: (M,), ρ at the parameters sent over what the mean of two images would have there; 0 where none is possible.
    count: N.
    complete: whether the duals determine all images.
    apart: (M,) bool, whether the second layer's update shows enough directions to tell the images' signals apart, or
        the candidate's dual shows that no other image has its signal.
    """

    error: Tensor
    misfit: Tensor
    residual: Tensor
    contradicted: Tensor
    moved: Tensor
    mixed: Tensor
    count: int
    complete: bool
    apart: Tensor

    def sure(self, images: Tensor) -> Tensor:
        """Return which candidates (M, in) are certain, (M,) bool: of a small error, duals that agree, no mean."""
        certain = torch.stack(list(self._passed(images).values())).all(0)
        return self.no_means(certain)

    def doubt(self, images: Tensor, sure: Tensor) -> str:
        """Return how many of the candidates (M, in) that are not sure, (M,) bool, are in doubt for which reason, the
        first that holds."""
        left, found = ~sure, []
        for why, passed in self._passed(images).items():
            if failed := int((left & ~passed).sum()):
                found.append(f"{failed} {why}")
            left = left & passed
        if left.any():
            found.append(f"{int(left.sum())} may be mixtures of images")
        return "; ".join(found)

    def _passed(self, images: Tensor) -> dict[str, Tensor]:
        """Return which candidates (M, in) pass, (M,) bool, by what is to be said of those that do not."""
        usual = usual_distance(images)
        exact = (self.error < CERTAINTY.error * usual) & (self.moved < CERTAINTY.moved * usual)
        return {
            "may be inexact": exact,
            "do not explain the second layer's update": self.residual < CERTAINTY.residual,
            "may share their signal with another image": self.apart | (self.residual < CERTAINTY.rounding**2),
            "rest on duals that may not be those of images": (self.misfit < CERTAINTY.misfit) | self.complete,
            "activate units that their duals leave inactive": self.contradicted < CERTAINTY.contradicted,
        }

    def no_means(self, chosen: Tensor) -> Tensor:
        """Return the chosen candidates (M,) without those that may be means of two, where fewer than N are chosen."""
        return chosen if int(chosen.sum()) >= self.count else chosen & (self.mixed < CERTAINTY.mixed)


def certainty(
    tests: Sequence[SpanTest],
    duals: DualSpace,
    directions: Tensor,
    passed: Tensor,
    loose: Tensor,
    *,
    shown: float = math.inf,
) -> Certainty:
    """Compute what determines images that passed the sparsity test (F, in), then loose candidates (P, in).

    tests: at parameters on the way from those sent, which come first, to those returned. directions: (F, N), the c of
    the duals of those that passed. shown: how many directions the second layer's update shows.
    """
    still_free = complement(directions)
    # u_i · c_j = 0 for i ≠ j: the direction that the dual of an image leaves to this image alone
    own = torch.linalg.pinv(directions) if len(directions) else directions.T
    free = [torch.cat([still_free, u[None]]) for u in own.T] + [still_free] * len(loose)
    images = torch.cat([passed, loose])
    way = [Moves.of(test, duals) for test in tests]
    found = [_error_and_misfit(way, *one) for one in zip(images, free, strict=True)]
    error, misfit = torch.tensor(found, dtype=passed.dtype, device=passed.device).reshape(-1, 2).unbind(1)
    contradicted = pad(duals.contradicted(directions, passed), (0, len(loose)))
    told, every = shown >= EVIDENCE.directions_needed * duals.count, len(directions) == duals.count
    complete = told and every and bool((duals.leverage(directions) < CERTAINTY.leverage).all())
    apart = torch.full((len(images),), told, device=images.device)
    if every and not told and shown >= duals.count:
        apart[: len(passed)] = duals.one_ratio(directions, CERTAINTY.compared) < CERTAINTY.one_ratio
    residual = tests[0].residual(images.float())
    moved, mixed = duals.moved_by_noise(images).to(residual), torch.zeros_like(residual)
    return Certainty(error, misfit, residual, contradicted, moved, mixed, duals.count, complete, apart)


@dataclass(frozen=True)
class Moves:
    """All ways in which a point of the first layer's span may move, x̃ kept at its last 1.

    test: of the points, in float64.
    basis: (N − 1, N), the coordinates y.
    span: (N, in + 1), S Vᵀ.
    fed: (N − 1, R·W), what they feed the units.
    """

    test: SpanTest
    basis: Tensor
    span: Tensor
    fed: Tensor

    @classmethod
    def of(cls, test: SpanTest, duals: DualSpace) -> "Moves":
        exact, span = test.double(), duals.values[:, None] * duals.rows
        basis = _without_last(torch.eye(len(span), dtype=span.dtype, device=span.device), span)
        return cls(exact, basis, span, basis @ span @ exact.first.T)


def _error_and_misfit(way: Sequence[Moves], image: Tensor, free: Tensor) -> tuple[float, float]:
    """Return (E at the parameters sent, the F ratio there, or the least on the way if too large) of an image."""
    error, misfit = _least_squares(way[0], image, free)
    for every in way[1:]:
        if misfit < CERTAINTY.misfit:
            break
        misfit = min(misfit, _least_squares(every, image, free)[1])
    return error, misfit


def _least_squares(every: Moves, image: Tensor, free: Tensor) -> tuple[float, float]:
    """Return (E, F ratio) of an image (in,) that may move along `free` (K + 1, N) of all moves."""
    rows = every.test.rows
    value, slope = every.test.activate(every.test.first @ pad(image, (0, 1), value=1.0), None)
    residual = outside_rounds(by_round(value, rows, 1.0)[None], rows)[0]
    changes = outside_rounds(by_round(every.fed * slope, rows, 0.0), rows)
    equations = len(rows) * (rows.shape[2] - rows.shape[1])
    moves = _without_last(free, every.span)
    left, along, inverse = _solve(residual, moves @ every.basis.T @ changes)
    pixels = (moves @ every.span)[:, :-1]
    if 0 < len(moves) < equations:
        variance = left / (equations - len(moves))
        error = float((variance * (inverse * (pixels @ pixels.T)).sum()).clamp_min(0).sqrt())
    else:
        error = float("inf") if len(moves) else 0.0
    if float((along @ pixels).norm()) > max(CERTAINTY.at_rest * error, SEARCH.same_length * float(image.norm())):
        error = float("inf")
    least, _, _ = _solve(residual, changes)
    others, spare = len(every.basis) - len(moves), equations - len(every.basis)
    if others <= 0 or spare <= 0:
        return error, 0.0
    rounding = CERTAINTY.rounding**2 * float(value.square().sum() + len(rows)) / equations
    return error, (left - least) / others / max(least / spare, rounding)


def with_means(found: Certainty, test: SpanTest, duals: DualSpace, passed: Tensor, loose: Tensor) -> Certainty:
    """Return the certainty with `mixed` of loose candidates (P, in) beside those that passed (F, in).

    A candidate x is compared with the mean of two that are each half of the way to another image from it. With features
    at x ± e, ḡ their mean and A as above for all directions, ρ would be the least ‖ḡ − g(x) − P (ḡ − g(x)) − Aᵀ y‖² /
    ‖g(x)‖² over y, of which the median over the other images is taken; infinity where there is none.
    """
    moves = Moves.of(test, duals)
    rows, activate = moves.test.rows, moves.test.activate
    fed = pad(torch.cat([passed, loose]).double(), (0, 1), value=1.0) @ moves.test.first.T
    values, slopes = activate(fed, None)
    mixed = found.mixed.clone()
    for i in range(len(passed), len(fed) if len(fed) > 1 else 0):
        half = (torch.cat([fed[:i], fed[i + 1 :]]) - fed[i]) / 2
        bent = (activate(fed[i] + half, None)[0] + activate(fed[i] - half, None)[0]) / 2 - values[i]
        missed = outside_rounds(by_round(bent, rows, 0.0), rows)
        changes = outside_rounds(by_round(moves.fed * slopes[i], rows, 0.0), rows)
        along = changes @ missed.T
        left = missed.square().sum(1) - (along * (inverse_gram(changes) @ along)).sum(0)
        size = by_round(values[i], rows, 1.0).square().sum()
        mixed[i] = found.residual[i] * size / left.median().clamp_min(torch.finfo(left.dtype).tiny)
    return replace(found, mixed=mixed)


def standing_out(layers: FirstLayers, activate: Activation, images: Tensor, noise: float) -> float:
    """Return by how much two images in the place of one would stand out of the first layer's update, the least over
    images (M, in). noise: its largest singular value. 0 for an image alone.

    Let x ± e/2 be in the place of x, each with half of its signal d, which follows the slopes of its units: with
    r = (σ'(z₊) − σ'(z₋)) / σ'(z) their part of the update is d xᵀ + ¼ (d ∘ r) eᵀ, whose second singular value is a
    quarter of the product of what d leaves of d ∘ r and x of e. e has half the length of the way to another image and
    its effect on the units, the (lower) median of these, but counts as no combination of the images.
    """
    if len(images) < 2:
        return 0.0
    points, fed = pad(images.double(), (0, 1), value=1.0), layers.fed[0].double()
    inputs, signals = points @ fed.T, (layers.change.double() @ torch.linalg.pinv(points)).T
    slopes, least = activate(inputs, None)[1], []
    for i, (z, d, slope) in enumerate(zip(inputs, signals, slopes, strict=True)):
        e = (torch.cat([points[:i], points[i + 1 :]]) - points[i]) / 2
        after, before = (activate(z + sign * e @ fed.T / 2, None)[1] for sign in (1, -1))
        turned = d * (after - before) * slope / (slope.square() + CERTAINTY.least_slope**2)
        signal, way = outside(turned, d[None] / d.norm()), outside(e, points[i : i + 1] / points[i].norm())
        least.append((signal.norm(dim=1) * way.norm(dim=1)).median() / 4)
    return float(torch.stack(least).min()) / noise


def _solve(residual: Tensor, changes: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return (what is left of ‖residual‖² along changes (K, ·), the step (K,) that takes the rest, the inverse (K, K)
    of their Gram matrix)."""
    inverse, slope = inverse_gram(changes), changes @ residual
    along = slope @ inverse
    return max(float(residual.square().sum() - along @ slope), 0.0), along, inverse


def _without_last(basis: Tensor, span: Tensor) -> Tensor:
    """Return a basis (K, N) of those coordinates spanned by `basis` (K + 1, N) that leave x̃'s last one alone."""
    return complement((basis @ span[:, -1])[None]) @ basis


def fit_images(
    update: Tensor, first: Tensor, images: Tensor, count: int, intervals: EntryIntervals | None = None
) -> tuple[Tensor, float]:
    """Fit images (M, in), given rough ones, to the update; return them and ‖Δ − Σ d x̃ᵀ‖ / ‖Δ‖, in float64.

    update: (W, in + 1), [ΔW | Δb]. first: (W, in + 1), [W₁ | b₁] at the initial parameters. count: N; where M < N the
    rest of the update is left to N − M rows without zeros. intervals: of Δ's entries, where they are all that is known:
    Δ is then the point of the intervals that is nearest to the sum, in turn with the other two.
    """
    update, first = update.double(), first.double()
    number = len(images)
    points = pad(images.double(), (0, 1), value=1.0)
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
        points = _ridge_solution(duals.T @ duals, duals.T @ update)
        points[:number] /= points[:number, -1:].clone()
        if i % FIT.zeros_kept == FIT.zeros_kept - 1:
            idle[:, :number] = _idle(points[:number], first, first + duals @ points)
    duals = _masked_duals(update, points, idle)
    left = (update if intervals is None else intervals.nearest(duals @ points)) - duals @ points
    return points[:number, :-1], float(left.norm() / update.norm())


def _idle(points: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return which units x̃ (M, in + 1) leaves inactive by the margin at both ends: (W, M) bool."""
    inputs = torch.maximum(points @ first.T, points @ last.T)
    return (inputs < -FIT.inactive_margin * inputs.square().mean(1, keepdim=True).sqrt()).T


def _masked_duals(update: Tensor, points: Tensor, idle: Tensor) -> Tensor:
    """Return the d (W, M) of least ‖Δ − d x̃‖ that are zero where idle, from one small system per unit."""
    gram, right = points @ points.T, update @ points.T
    found = torch.empty_like(right)
    for units in torch.arange(len(update), device=update.device).split(max(1, BATCH // gram.numel())):
        active = (~idle[units]).to(gram.dtype)
        systems = gram * active[:, :, None] * active[:, None, :]
        systems.diagonal(dim1=1, dim2=2).add_(1 - active)
        found[units] = _ridge_solution(systems, (right[units] * active)[:, :, None])[:, :, 0]
    return found


def _ridge_solution(gram: Tensor, right: Tensor) -> Tensor:
    """Solve normal equations, to whose diagonal a ridge is added in place."""
    diagonal = torch.diagonal(gram, dim1=-2, dim2=-1)
    diagonal.add_(FIT.ridge * diagonal.mean(-1, keepdim=True))
    return torch.cholesky_solve(right, torch.linalg.cholesky(gram))
