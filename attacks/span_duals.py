"""Exact images from approximate ones: the duals of a ReLU layer vanish on the units that an image leaves inactive.

With N images, the first layer's update is exactly [ΔW | Δb] = Σ_i d_i x̃_iᵀ, x̃_i = [x_i; 1], where d_i (W,) is what
image i contributed to every unit: it is zero on each unit that x_i never activated while the client trained. With the
singular value decomposition [ΔW | Δb] = L S Vᵀ of rank N,

    d_i = L c_i,    x̃_i = V S y_i,    y_i · c_j = 0 for i ≠ j.

An approximate image y tells which units are inactive, and c_i is the sparsest L c on them with y · c = 1 (so that the
duals of no other image will do): the least Σ_r log((l_r · c)² + ε²) for falling ε, by iteratively reweighted least
squares (Candès, Wakin and Boyd 2008); the usual Σ_r |l_r · c| fails on clients that drift far. Given all c_i, the
second relation yields every image, to the rounding error of the parameters, however rough the candidates were.

A vector of a generic N-dimensional space can be zero on N − 1 units of choice, not on many more: zeros
beyond that certify that the candidate led to a private image. SPEAR (Dimitrov et al., NeurIPS 2024) uses this sparsity
on single gradients; it holds just as well over any number of local steps, for the units that stay inactive.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.history import repeats
from attacks.spectrum import Spectrum

AVOID = 100.0  # weight of y_j · c = 0 in the start, against the energy of L c on inactive units
SUREST = 0.5, 0.25, 0.125  # of the inactive units, those farthest from activation: where the search for c starts
REWEIGHTINGS, BLUNTEST, SHARPEST = 20, 0.3, 1e-3  # ε of the first and the last, relative to the rms of d
SMALL = 1e-2  # of the rms of d: smaller entries are zeros, or about to be
STILL = 1e-8  # 1 − |c · c'| of two reweightings, once there are more zeros than a mixture has: only trims are left
TRIMS = 4  # last steps, on the units that look like zeros alone, the bound falling tenfold from there
NOISE_WIDTHS = 8.0  # an entry of L c is zero below so many standard deviations of its rounding error
CLEAN = 0.02  # entries this small happen by chance on 1.6 % of the units; zeros are told only below it (rms of d: 1)
CHANCE = 0.05  # share of units whose entry may be zero by chance
INDEPENDENT = 0.05  # of a unit vector c, its part outside the span of sparser ones; 0.4 and more for private images
MIXED = 32  # directions nearest to one that may be mixed into it
DOUBTFUL = 0.25  # of the directions, those with the fewest zeros: mixtures of duals are among them


@dataclass(frozen=True)
class DualSpace:
    """The factors of a first layer's update, in float64, and the units' parameters at both ends of training.

    left: (W, N), L. rows: (N, in + 1), Vᵀ. values: (N,), S. noise: standard deviation of an entry of the update beyond
    its N-dimensional part. ends: two (W, in + 1), [W | b] before and after. Units that did not change are left out.
    repeats: in how many rounds a unit has the same row of L, up to scale and noise; 1 for a single round.
    """

    left: Tensor
    rows: Tensor
    values: Tensor
    noise: float
    ends: tuple[Tensor, Tensor]
    repeats: float = 1.0

    @classmethod
    def of(cls, initial: Tensor, final: Tensor, spectrum: Spectrum, count: int, rounds: int = 1) -> "DualSpace":
        """initial, final: [W | b], (W, in + 1), of several rounds one below the other. spectrum: of the change."""
        rows, values = spectrum.vectors[:count], spectrum.values[:count]
        alive = (final != initial).any(1)
        inside = (final - initial) @ rows.T
        noise = spectrum.noise(count)
        repeated = repeats(inside.unflatten(0, (rounds, -1)), NOISE_WIDTHS * noise) if rounds > 1 else 1.0
        return cls(inside[alive] / values, rows, values, noise, (initial[alive], final[alive]), repeated)

    @property
    def count(self) -> int:
        """N."""
        return len(self.values)

    def coordinates(self, images: Tensor) -> Tensor:
        """y (M, N) of images (M, in)."""
        return (images.double() @ self.rows[:, :-1].T + self.rows[:, -1]) / self.values

    def images(self, coordinates: Tensor) -> Tensor:
        """(M, in) of y (M, N), each scaled so that the last component of x̃ is 1."""
        points = coordinates * self.values @ self.rows
        return points[:, :-1] / points[:, -1:]

    def remaining_rows(self, directions: Tensor) -> Tensor:
        """(N − F, in + 1): rows that span all x̃ but those of the F images with directions c (F, N)."""
        if len(directions) == 0:
            return self.values[:, None] * self.rows
        basis = torch.linalg.qr(directions.T, mode="complete")[0][:, len(directions) :]
        return basis.T * self.values @ self.rows

    def without(self, coordinates: Tensor, directions: Tensor) -> Tensor:
        """y (M, N) freed from what they share with the images of the directions c (F, N)."""
        if len(directions) == 0:
            return coordinates
        basis = torch.linalg.qr(directions.T)[0]
        return coordinates - coordinates @ basis @ basis.T

    def disentangle(self, coordinates: Tensor, directions: Tensor) -> Tensor:
        """y (F, N) of the images whose directions are c (F, N), from rough ones: y_i · c_j = 0 for j ≠ i.

        Exact whatever the rough ones are once F = N.
        """
        overlaps = coordinates @ directions.T
        overlaps.fill_diagonal_(0)
        # for every i the least-norm change that cancels y_i · c_j for all j ≠ i: by the inverse of the Gram matrix of
        # all c, with the one change along c_i free, chosen so that the result has no multiplier there
        inverse = torch.linalg.inv(directions @ directions.T)
        multipliers = overlaps @ inverse
        own = torch.diagonal(multipliers) / torch.diagonal(inverse)
        multipliers = multipliers - own[:, None] * inverse
        return coordinates - multipliers @ directions

    def sparsest(self, coordinates: Tensor, sure: Tensor, known: Tensor) -> Tensor:
        """c (M, N) of unit length, L c as sparse as possible on the units that the candidate y (M, N) leaves inactive.

        sure: (M,) bool, candidates that are close to a private image. known: (F, N), y of images found. The start is
        the c of least energy on those units that nearly avoids known and other sure images, as y_j · c = 0.
        """
        unit = coordinates / coordinates.norm(dim=1, keepdim=True)
        others = torch.cat([known / known.norm(dim=1, keepdim=True), unit[sure]])
        avoid = others.T @ others
        found = [
            self._sparsest(units, own, avoid - own.outer(own), len(SUREST))
            if certain
            else self._sparsest(units, own, avoid)
            for units, own, certain in zip(self._inactive(coordinates), unit, sure.tolist(), strict=True)
        ]
        return torch.stack(found) if found else coordinates

    def settled(self, coordinates: Tensor, directions: Tensor) -> Tensor:
        """c (F, N), the doubtful ones sought again from images that the others make exact, until none gains a zero.

        coordinates: (F, N), rough y of the images. A mixture a c_i + b c_j can pass for the image i where c_j is known;
        y_i, orthogonal to every other direction, is then exact all the same, and with it the units i leaves inactive.
        """
        directions = self.purified(directions)
        doubtful = self.doubtful(directions)
        while len(doubtful):
            y = self.disentangle(coordinates, directions)
            unit = y / y.norm(dim=1, keepdim=True)
            others = [torch.cat([unit[:j], unit[j + 1 :]]) for j in doubtful.tolist()]
            sought = torch.stack(
                [
                    self._sparsest(units, own, known.T @ known)
                    for units, own, known in zip(self._inactive(y[doubtful]), unit[doubtful], others, strict=True)
                ]
            )
            better = self.zeros(sought) > self.zeros(directions[doubtful])
            doubtful, sought = doubtful[better], sought[better]
            directions = directions.index_copy(0, doubtful, sought)
        return directions

    def doubtful(self, directions: Tensor) -> Tensor:
        """Indices of the c (F, N) with the fewest zeros."""
        return self.zeros(directions).argsort(stable=True)[: math.ceil(DOUBTFUL * len(directions))]

    def purified(self, directions: Tensor) -> Tensor:
        """c (F, N), every one freed from what known others are mixed into it, as long as that brings zeros.

        Where c_i is a mixture of another c and c_j, (L c_i)_r / (L c_j)_r is one and the same number t on all units
        where that other dual is zero and that of j is not: c_i − t c_j, for the most frequent ratio, has the zeros.
        """
        mixed = torch.arange(len(directions), device=directions.device)
        while len(mixed) and len(directions) > 1:
            pure = torch.stack([self._purest(directions, i) for i in mixed.tolist()])
            better = self.zeros(pure) > self.zeros(directions[mixed])
            mixed = mixed[better]
            directions = directions.index_copy(0, mixed, pure[better])
        return directions

    def _purest(self, directions: Tensor, index: int) -> Tensor:
        own = directions[index]
        overlaps = (directions @ own).abs()
        overlaps[index] = -1
        others = directions[overlaps.argsort(descending=True, stable=True)[: min(MIXED, len(directions) - 1)]]
        duals, parts = self.left @ own, others @ self.left.T
        ratios = torch.where(parts.abs() > self._tolerance(others), duals / parts, torch.inf).sort(dim=1).values
        width = self._tolerance(own[None])[0, 0] / parts.square().mean(1).sqrt()
        votes = torch.searchsorted(ratios, ratios + width[:, None], right=True)
        votes -= torch.arange(ratios.shape[1], device=ratios.device)
        first = torch.where(ratios.isfinite(), votes, 0).argmax(1, keepdim=True)
        middle = first + votes.gather(1, first) // 2
        pure = own - ratios.gather(1, middle).nan_to_num(posinf=0) * others
        pure = pure / pure.norm(dim=1, keepdim=True)
        return pure[self.zeros(pure).argmax()]

    def _inactive(self, coordinates: Tensor) -> list[Tensor]:
        """For every y (M, N) the rows of L, (·, N), of the units that its image leaves inactive at both ends.

        Those farthest from activation come first: they are the least likely to have been active in between.
        """
        points = torch.nn.functional.pad(self.images(coordinates), (0, 1), value=1.0)
        nearest = torch.maximum(points @ self.ends[0].T, points @ self.ends[1].T)
        order, idle = nearest.argsort(dim=1, stable=True), (nearest < 0).sum(1).tolist()
        return [self.left[units[:number]] for units, number in zip(order, idle, strict=True)]

    def _sparsest(self, units: Tensor, own: Tensor, avoid: Tensor, starts: int = 1) -> Tensor:
        """c (N,) for one candidate: units (·, N), of L, surest zeros first. starts: tried until one is certified."""
        best = own
        for share in SUREST[:starts]:
            surest = units[: max(int(share * len(units)), len(own))]
            c = self._reweighted(units, own, _least(surest.T @ surest + AVOID * avoid, own))
            zeros = self.zeros(torch.stack([best, c]))
            best = c if zeros[1] > zeros[0] else best
            if zeros.max() > self._enough():
                break
        return best

    def _reweighted(self, units: Tensor, own: Tensor, c: Tensor) -> Tensor:
        enough, sure = self._enough(), False
        for i in range(REWEIGHTINGS):
            duals = units @ c
            rms = duals.square().mean().sqrt()
            epsilon = rms * (SHARPEST if sure else BLUNTEST * (SHARPEST / BLUNTEST) ** (i / (REWEIGHTINGS - 1)))
            last, c = c, _least(_weighted(units, 1 / (duals.square() + epsilon**2)), own)
            if sure:
                break
            sure = int((duals.abs() < SMALL * rms).sum()) > enough and 1 - abs(float(last @ c)) < STILL
        zero = None
        for i in range(TRIMS):
            duals = (units @ c).abs()
            bound = SHARPEST * 0.1**i * duals.square().mean().sqrt()
            zero, before = duals < torch.maximum(self._tolerance(c[None])[0, 0], bound), zero
            if before is None or not torch.equal(zero, before):
                c = _least(_weighted(units, zero.to(duals.dtype) + 1e-9), own)
        return c

    def zeros(self, directions: Tensor) -> Tensor:
        """On how many units L c is zero, (M,), for c (M, N); none where rounding errors hide zeros."""
        tolerance = self._tolerance(directions)
        clean = tolerance * len(self.left) ** 0.5 < CLEAN
        return (((directions @ self.left.T).abs() < tolerance) & clean).sum(1)

    def certified(self, directions: Tensor) -> Tensor:
        """Indices of independent c among (M, N), sparsest first, whose L c is zero on more units than chance and N − 1
        free choices explain (each as often as rounds repeat a unit's duals). A mixture of duals has many zeros too, but
        fewer than its parts, on which it depends."""
        zeros, enough, count = self.zeros(directions), self._enough(), len(self.values)
        kept: list[int] = []
        basis = directions.new_zeros(0, count)
        for i in zeros.argsort(descending=True, stable=True).tolist():
            rest = directions[i] - (directions[i] @ basis.T) @ basis
            if zeros[i] > enough and rest.norm() > INDEPENDENT:
                rest = rest - (rest @ basis.T) @ basis
                basis = torch.cat([basis, (rest / rest.norm())[None]])
                kept.append(i)
        return torch.tensor(kept, dtype=torch.long, device=directions.device)

    def _enough(self) -> float:
        """Zeros beyond what chance and N − 1 free choices explain."""
        width, count = self.left.shape
        return 1.25 * count * self.repeats + CHANCE * width

    def _tolerance(self, directions: Tensor) -> Tensor:
        """(M, 1): below it an entry of L c = [ΔW | Δb] V S⁻¹ c is rounding error, of deviation noise · ‖S⁻¹ c‖."""
        return NOISE_WIDTHS * self.noise * (directions / self.values).norm(dim=1, keepdim=True)


def _weighted(units: Tensor, weight: Tensor) -> Tensor:
    return (units * (weight / weight.mean())[:, None]).T @ units


def _least(gram: Tensor, own: Tensor) -> Tensor:
    """The c (N,) of least c · gram c among those with own · c = 1, at unit length."""
    gram.diagonal().add_(1e-13 * gram.diagonal().mean())
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed:
        return own
    c = torch.cholesky_solve(own[:, None], factor)[:, 0]
    return c / c.norm()
