"""What the search minimizes: how far a point of the first layer's span is from the second layer's span in features.

A candidate is a point x of the affine space that the first layer's rows leave, {x : [x; 1] in their span}. With
g = [h(x); 1], h its hidden features at the initial parameters, P the projection onto the second layer's row space and
Q the one onto the features of the images found so far,

    ρ(x) = ‖g − P g‖² / ‖g‖²,    deflated:  ‖g − P g‖² / (‖g − Q g‖² + ε ‖g‖²).

Where the client was seen in R rounds, each has hidden features and a second layer of its own: g lists the features of
all rounds, P is the projection round by round, and ρ = Σ_r ‖g_r − P_r g_r‖² / Σ_r ‖g_r‖².
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.networks.mlp import Activation
from attacks.span.thresholds import SEARCH


@dataclass(frozen=True)
class AffineSpan:
    """The points {x : [x; 1] = origin + b · directions}, which are given by their coordinates b (…, n − 1).

    origin: (in + 1,), last component 1.
    directions: (n − 1, in + 1), last component 0.
    """

    origin: Tensor
    directions: Tensor

    @classmethod
    def of(cls, rows: Tensor, generator: torch.Generator) -> "AffineSpan":
        """Return the points whose last component is 1 in the span of the rows (n, in + 1) of an update, or of its S Vᵀ,
        in a random orthonormal basis, in units of the origin's length."""
        squares, left = torch.linalg.eigh(rows @ rows.T)
        basis = left.T @ rows / squares.clamp_min(squares[-1] * 1e-16).sqrt()[:, None]
        last = basis[:, -1]
        start = last / (last @ last)
        noise = torch.randn(len(rows), len(rows) - 1, generator=generator, dtype=rows.dtype).to(rows.device)
        frame = torch.linalg.qr(torch.cat([last[:, None], noise], 1))[0][:, 1:]
        directions = start.norm() * frame.T @ basis
        directions[:, -1] = 0
        return cls(start @ basis, directions)

    @classmethod
    def scaled(cls, rows: Tensor) -> "AffineSpan":
        """Return the same points, with coordinates along the principal axes of the rows, in units of the square root of
        each singular value, as private images spread; one coordinate more than the span has dimensions."""
        squares, left = torch.linalg.eigh(rows @ rows.T)
        squares = squares.clamp_min(squares[-1] * 1e-16)
        basis = left.T @ rows / squares.sqrt()[:, None]
        last = basis[:, -1]
        origin = (last / (last @ last)) @ basis
        directions = squares[:, None] ** 0.25 * (basis - last[:, None] * origin)
        directions[:, -1] = 0
        scale = origin.norm() * len(rows) ** 0.5 / directions.norm().clamp_min(torch.finfo(rows.dtype).tiny)
        return cls(origin, scale * directions)

    def images(self, coordinates: Tensor) -> Tensor:
        """Return the images (M, in) of coordinates (M, n − 1)."""
        return self.origin[:-1] + coordinates @ self.directions[:, :-1].to(coordinates.dtype)


@dataclass(frozen=True)
class SpanTest:
    """Tests any image by its ρ.

    first: (R·W, in + 1), [W₁ | b₁] at the initial parameters, one round below the other.
    rows: (R, k, W + 1), an orthonormal basis of the second layer's row space in each round, strongest first.
    activate: the activation behind the first layer.
    leading: how many rows hold nearly all of it, so that a search may start with them; None: no fewer do.
    """

    first: Tensor
    rows: Tensor
    activate: Activation
    leading: int | None = None

    def features(self, images: Tensor) -> Tensor:
        """Return the features g = [h; 1] of images (M, in), one round after the other: (M, R·(W + 1))."""
        hidden = self.activate(torch.addmm(self.first[:, -1], images, self.first[:, :-1].T), None)[0]
        return by_round(hidden, self.rows, 1.0)

    def residual(self, images: Tensor) -> Tensor:
        """Compute ρ of images (M, in): (M,)."""
        g = self.features(images)
        return outside_rounds(g, self.rows).square().sum(1) / g.square().sum(1)

    def double(self) -> "SpanTest":
        """Return the same in float64."""
        return replace(self, first=self.first.double(), rows=self.rows.double())


@dataclass(frozen=True)
class SpanProblem:
    """ρ as a function of the coordinates in an affine span.

    base: (R·(W + 1),), the first layer's output at b = 0; the last unit of every round is the constant 1 of g.
    slope: (n − 1, R·(W + 1)); the first layer's output at b is base + b · slope.
    rows, activate: as in SpanTest.
    """

    base: Tensor
    slope: Tensor
    rows: Tensor
    activate: Activation

    @classmethod
    def of(cls, test: SpanTest, span: AffineSpan) -> "SpanProblem":
        first = test.first.double()
        base, slope = first @ span.origin, span.directions @ first.T
        rounds, dtype = len(test.rows), test.rows.dtype
        padded = [
            torch.nn.functional.pad(part.view(-1, rounds, len(base) // rounds), (0, 1), value=last).flatten(1).to(dtype)
            for part, last in ((base, 1.0), (slope, 0.0))
        ]
        return cls(padded[0][0], padded[1], test.rows, test.activate)

    def leading(self, number: int | None) -> "SpanProblem":
        """Return the same with so many of the second layer's leading directions in each round, or with all (None)."""
        return self if number is None else replace(self, rows=self.rows[:, :number].contiguous())

    def value_and_gradient(self, coordinates: Tensor, found: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute ρ (M,) and its gradient (M, n − 1), deflated by the orthonormal rows `found` (F, W + 1) where given.

        With m = g − P g, f = g − Q g and D the denominator: ∂ρ/∂g = 2 (m − ρ (f + ε g)) / D, as ∂‖m‖²/∂g = 2 m.
        """
        g, slopes = self.activate(torch.addmm(self.base, coordinates, self.slope), None)
        width = self.rows.shape[2]
        g[:, width - 1 :: width] = 1
        missed = outside_rounds(g, self.rows)
        against, size = g, g.square().sum(1)
        if found is not None:
            rest = outside(g, found)
            size = rest.square().sum(1) + SEARCH.deflation_floor * size
            against = rest.add_(g, alpha=SEARCH.deflation_floor)
        value = missed.square().sum(1) / size
        pull = missed.sub_(against.mul_(value[:, None])).mul_((2 / size)[:, None]).mul_(slopes)
        return value, pull @ self.slope.T


@dataclass(frozen=True)
class FreePoints:
    """Images that may move along some rows, x̃ kept at its last 1, down to a minimum of ρ by Gauss-Newton steps: near an
    image its features g are linear in it, with the slopes of its own units.

    free: (K, in + 1), the rows, in float64.
    fed: (K, R·W), what a step along each of them feeds the units, in float64.
    test: in float64.
    """

    free: Tensor
    fed: Tensor
    test: SpanTest

    @classmethod
    def of(cls, test: SpanTest, free: Tensor) -> "FreePoints":
        exact = test.double()
        return cls(free, free @ exact.first.T, exact)

    def settled(self, image: Tensor) -> Tensor:
        """Move an image (in,) to where it comes to rest: after so many steps, or the last one that gains."""
        rho, step = self._step(image)
        for _ in range(SEARCH.newton_steps):
            lower, following = self._step(image + step)
            if not lower < rho:
                break
            image, gained = image + step, lower < (1 - SEARCH.newton_gain) * rho
            rho, step = lower, following
            if not gained:
                break
        return image

    def _step(self, image: Tensor) -> tuple[float, Tensor]:
        """Return (ρ at an image, the step (in,) of least squares for m / ‖g‖, m = g − P g, whose square is ρ).

        Its change along a direction is (∂m − m (g · ∂g) / ‖g‖²) / ‖g‖. Least squares for m alone shrink g instead.
        """
        point, rows, last = torch.nn.functional.pad(image, (0, 1), value=1.0), self.test.rows, self.free[:, -1:]
        inputs = self.test.first @ point
        hidden, slope = self.test.activate(inputs, None)
        g, change = by_round(hidden[None], rows, 1.0), by_round((self.fed - last * inputs) * slope, rows, 0.0)
        missed, size = outside_rounds(g, rows), g.square().sum()
        change = outside_rounds(change, rows) - (change @ g.T / size) * missed
        along = inverse_gram(change) @ (change @ missed[0])
        return float(missed.square().sum() / size), -(along @ (self.free - last * point))[:-1]


def inverse_gram(changes: Tensor) -> Tensor:
    """Invert the Gram matrix of changes (K, ·), which are to be solved for by least squares: (K, K)."""
    gram = changes @ changes.T
    if len(gram):
        gram.diagonal().add_(SEARCH.ridge * gram.diagonal().mean())
    return torch.linalg.pinv(gram, hermitian=True)


def outside(points: Tensor, rows: Tensor) -> Tensor:
    """Return z − P z of points z (M, W), P the projection onto orthonormal rows; 1 − ‖P z‖² loses all below 1e-7."""
    return torch.addmm(points, points @ rows.T, rows, alpha=-1)


def outside_rounds(points: Tensor, rows: Tensor) -> Tensor:
    """Return the same as `outside`, round by round, for points (M, R·W) and rows (R, k, W)."""
    if len(rows) == 1:
        return outside(points, rows[0])
    parts = points.split(rows.shape[2], 1)
    return torch.cat([outside(part, row) for part, row in zip(parts, rows, strict=True)], 1)


def by_round(features: Tensor, rows: Tensor, last: float) -> Tensor:
    """Return features (…, R·W) with one more behind those of every round, (…, R·(W + 1)). rows: (R, k, W + 1)."""
    parts = features.unflatten(-1, (len(rows), rows.shape[2] - 1))
    return torch.nn.functional.pad(parts, (0, 1), value=last).flatten(-2)
