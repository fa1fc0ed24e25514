"""Exact images from approximate ones: the duals of a ReLU layer vanish on the units that an image leaves inactive.

With N images, the first layer's update is exactly [ΔW | Δb] = Σ_i d_i x̃_iᵀ, x̃_i = [x_i; 1], where d_i (W,) is what
image i contributed to every unit: it is zero on each unit that x_i never activated while the client trained. With the
singular value decomposition [ΔW | Δb] = L S Vᵀ of rank N,

    d_i = L c_i,    x̃_i = V S y_i,    y_i · c_j = 0 for i ≠ j.

Given all c_i, the last relation yields every image, to the rounding error of the parameters.

**From one rough image** (`sparsest`): an approximate image y tells which units are inactive, the surest those farthest
from activation, and c is the sparsest L c on them with y · c = 1 (so that the duals of no other image will do): the
least Σ_r log((l_r · c)² + ε²) for falling ε, by iteratively reweighted least squares (Candès, Wakin and Boyd 2008). The
usual Σ_r |l_r · c| fails on clients that drift far, where units were active in between.

**From many candidates at once** (`sparsest_of_many`), one product of matrices per step: where images are many for the
width, hardly any candidate is close to one, but the sparsest dual of one candidate in a few dozen is that of a private
image all the same, as its number of zeros says.

**The sparsity test** (`DualSpace.passing`): a vector of a generic N-dimensional space can be zero on N − 1 units of
choice, and hardly on many more. The test asks for more zeros than choice and chance explain: a heuristic count, no
proof, that the candidate led to a private image. SPEAR (Dimitrov et al., NeurIPS 2024) uses this sparsity on single
gradients; it holds just as well over any number of local steps, for the units that stay inactive.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attacks.span.thresholds import CROWDED, DUAL, SPARSITY
from attacks.update.spectrum import Spectrum


@dataclass(frozen=True)
class DualSpace:
    """The factors of a first layer's update, in float64, and the units' parameters at both ends of training.

    left: (W, N), L; units that did not change are left out.
    rows: (N, in + 1), Vᵀ.
    values: (N,), S.
    noise: standard deviation of an entry of the update beyond its N-dimensional part.
    ends: two (W, in + 1), [W | b] of what the activation is fed before and after.
    repeats: in how many rounds a unit has the same row of L, up to scale and noise; 1 for a single round.
    units: (W,), the unit of every row of L, in whatever round; None where no two rows are of one.
    last: (N, N), C, covariance of the error of β, the coordinates of the bias's column; None where it is that of the
        other columns, noise² times the identity.
    """

    left: Tensor
    rows: Tensor
    values: Tensor
    noise: float
    ends: tuple[Tensor, Tensor]
    repeats: float = 1.0
    units: Tensor | None = None
    last: Tensor | None = None

    @classmethod
    def of(
        cls,
        initial: Tensor,
        final: Tensor,
        spectrum: Spectrum,
        count: int,
        rounds: int = 1,
        fed: tuple[Tensor, Tensor] | None = None,
    ) -> "DualSpace":
        """Factor an update. initial, final: [W | b], (W, in + 1), of several rounds one below the other. spectrum: of
        the change. fed: [W | b] of what the activation is fed before and after, where that is not the layer's
        output."""
        rows, values = spectrum.vectors[:count], spectrum.values[:count]
        first, last = fed or (initial, final)
        alive = (final != initial).any(1)
        inside = (final - initial) @ rows.T
        noise = spectrum.noise(count)
        repeated = repeats(inside.unflatten(0, (rounds, -1)), SPARSITY.zero_widths * noise) if rounds > 1 else 1.0
        units = (alive.nonzero()[:, 0] % (len(alive) // rounds)).unique(return_inverse=True)[1]
        return cls(inside[alive] / values, rows, values, noise, (first[alive], last[alive]), repeated, units)

    def with_bias_error(self, deviation: Tensor) -> "DualSpace":
        """Return a copy in which the bias's column is L β, fitted to entries of this standard deviation (W,)."""
        inverse = torch.linalg.pinv(self.left / deviation[:, None])
        return replace(self, last=inverse @ inverse.T)

    @property
    def count(self) -> int:
        """N, the number of images."""
        return len(self.values)

    def coordinates(self, images: Tensor) -> Tensor:
        """Return the y (M, N) of images (M, in)."""
        return (images.double() @ self.rows[:, :-1].T + self.rows[:, -1]) / self.values

    def images(self, coordinates: Tensor) -> Tensor:
        """Return the images (M, in) of y (M, N), each scaled so that the last component of x̃ is 1."""
        points = coordinates * self.values @ self.rows
        return points[:, :-1] / points[:, -1:]

    def moved_by_noise(self, images: Tensor) -> Tensor:
        """Return how far the update's error moves images (M, in), an expected L2 distance (M,): of x̃ = Δᵀ L y every
        entry is off by noise · ‖y‖, the last one by √(yᵀ C y) where C is its covariance, of x by as much for each
        pixel, and by its own length for the last one."""
        y, points = self.coordinates(images), images.double()
        entry = self.noise * y.norm(dim=1)
        last = entry if self.last is None else ((y @ self.last) * y).sum(1).clamp_min(0).sqrt()
        return (entry.square() * points.shape[1] + last.square() * points.square().sum(1)).sqrt()

    def remaining_rows(self, directions: Tensor) -> Tensor:
        """Return rows (N − F, in + 1) that span all x̃ but those of the F images with the directions c (F, N)."""
        if len(directions) == 0:
            return self.values[:, None] * self.rows
        return complement(directions) * self.values @ self.rows

    def without(self, coordinates: Tensor, directions: Tensor) -> Tensor:
        """Return the y (M, N) without what they share with the images of the directions c (F, N)."""
        if len(directions) == 0:
            return coordinates
        basis = torch.linalg.qr(directions.T)[0]
        return coordinates - coordinates @ basis @ basis.T

    def disentangle(self, coordinates: Tensor, directions: Tensor) -> Tensor:
        """Return the y (F, N) of the images with the directions c (F, N), from rough ones: y_i · c_j = 0 for j ≠ i."""
        overlaps = coordinates @ directions.T
        overlaps.fill_diagonal_(0)
        # for every i the least-norm change that cancels y_i · c_j for all j ≠ i: by the inverse of the Gram matrix of
        # all c, with the one change along c_i free, chosen so that the result has no multiplier there
        gram = directions @ directions.T
        inverse, singular = torch.linalg.inv_ex(gram)
        inverse = torch.linalg.pinv(gram, hermitian=True) if singular else inverse  # one direction found twice
        multipliers = overlaps @ inverse
        own = torch.diagonal(multipliers) / torch.diagonal(inverse)
        multipliers = multipliers - own[:, None] * inverse
        return coordinates - multipliers @ directions

    def nearest(self, coordinates: Tensor) -> Tensor:
        """Return the larger of what images of y (M, N) feed every unit at both ends of training, (M, W); below 0:
        inactive."""
        points = torch.nn.functional.pad(self.images(coordinates), (0, 1), value=1.0)
        return torch.maximum(points @ self.ends[0].T, points @ self.ends[1].T)

    def inactive(self, coordinates: Tensor) -> list[Tensor]:
        """Return, for every y (M, N), the rows of L, (·, N), of the units that its image leaves inactive at both ends,
        those farthest from activation first: they are the least likely to have been active in between."""
        nearest = self.nearest(coordinates)
        order, idle = nearest.argsort(dim=1, stable=True), (nearest < 0).sum(1).tolist()
        return [self.left[units[:number]] for units, number in zip(order, idle, strict=True)]

    def zeros(self, directions: Tensor, duals: Tensor | None = None) -> Tensor:
        """Count the units (M,) where L c is zero, c (M, N); none where rounding hides zeros. duals: (M, W), L c."""
        tolerance = self.tolerance(directions)
        clean = tolerance * len(self.left) ** 0.5 < SPARSITY.clean
        duals = directions @ self.left.T if duals is None else duals
        return ((duals.abs() < tolerance) & clean & ~self.only_noise).sum(1)

    @cached_property
    def only_noise(self) -> Tensor:
        """Which rows of L (W,) are no more than noise, as it moves dead units too: L c is zero there for all c."""
        return (self.left * self.values).norm(dim=1) < self.noise * (self.count**0.5 + SPARSITY.zero_widths)

    def leverage(self, directions: Tensor) -> Tensor:
        """Return the largest leverage (M,) that the rows of one unit have among those of all zeros of L c, c (M, N): 1
        where c falls without that unit, infinite where the zeros leave c free. A mixture of k duals is zero where they
        all are, and on k − 1 further units, each of leverage 1."""
        found, rank = [], self.count - 1
        for c, bound in zip(directions, self.tolerance(directions), strict=True):
            zero = (self.left @ c).abs() < bound
            left, values, right = torch.linalg.svd(self.left[zero], full_matrices=False)
            fixed = 0 < rank <= len(values)
            if not fixed or values[rank - 1] < self.tolerance(right[rank - 1 : rank]) * len(left) ** 0.5:
                found.append(float("inf"))
                continue
            units = zero.nonzero()[:, 0] if self.units is None else self.units[zero]
            shares = left[:, :rank].square().sum(1)
            found.append(float(shares.new_zeros(len(self.left)).index_add(0, units, shares).max()))
        return directions.new_tensor(found)

    def contradicted(self, directions: Tensor, images: Tensor) -> Tensor:
        """Return the share (F,) of the zeros of L c, c (F, N), on units that its image (F, in) activates at an end."""
        zero = (directions @ self.left.T).abs() < self.tolerance(directions)
        active = self.nearest(self.coordinates(images)) >= 0
        return (zero & active).sum(1).double() / zero.sum(1).clamp_min(1)

    def shared_zeros(self, directions: Tensor, others: Tensor) -> Tensor:
        """Return the share (M, K) of the zeros of L c, c (M, N), that are zeros of other duals as well, (K, N)."""
        zero, also = (((c @ self.left.T).abs() < self.tolerance(c)).to(c) for c in (directions, others))
        return zero @ also.T / zero.sum(1, keepdim=True).clamp_min(1)

    def one_ratio(self, directions: Tensor, least: int) -> Tensor:
        """Return the largest share (M,) of units on which the ratio of L c to another one is one number, c (M, N).

        Only units are asked where neither is zero; a pair with fewer than `least` of them counts as 1. Where the
        signals of two images are parallel, d_i − s d_j has the zeros of a dual and gives d_j the mean of both images:
        its ratio to d_j is −s on all units that j alone activates. The ratio of two images' own duals is one number
        where their signals are parallel, and else differs from unit to unit.
        """
        duals, bounds = directions @ self.left.T, self.tolerance(directions)
        clear = duals.abs() > SPARSITY.clear * bounds
        most = directions.new_zeros(len(directions))
        for i in range(len(directions)):
            both = clear[i] & clear
            ratios = torch.where(both, duals[i] / duals, torch.inf)
            width = torch.where(both, (bounds[i] + ratios.abs() * bounds) / duals.abs(), 0.0)
            ratios, order = ratios.sort(dim=1)
            last = torch.searchsorted(ratios, ratios + width.gather(1, order), right=True)
            votes = last - torch.arange(1, 1 + ratios.shape[1], device=last.device)
            equal, units = torch.where(ratios.isfinite(), votes, 0).amax(1), both.sum(1)
            shares = torch.where(units < least, 1.0, equal / units.clamp_min(1))
            shares[i] = 0
            most[i] = shares.max()
        return most

    def passing(self, directions: Tensor) -> Tensor:
        """Return indices of the c (M, N) that pass the sparsity test, sparsest first: L c has more zeros than are
        explained, and not far fewer than the median of such c; and c is independent of sparser ones. A mixture of duals
        has many zeros too, but fewer than its parts."""
        zeros, enough = self.zeros(directions), self.explained_zeros
        if (many := zeros[zeros > enough]).numel():
            typical = float(many.median())
            enough = max(enough, typical - SPARSITY.below_typical * typical**0.5)
        order = zeros.argsort(descending=True, stable=True)
        order = order[zeros[order] > enough]
        return order[independent(directions[order], SPARSITY.independent)]

    @cached_property
    def explained_zeros(self) -> float:
        """How many zeros chance and N − 1 free choices explain, each as often as rounds repeat a unit's duals."""
        width, count = int((~self.only_noise).sum()), self.left.shape[1]
        free, lost = count * self.repeats, self.lost_in_noise
        chance = max(CROWDED.chance * width, lost)
        crowded = max(CROWDED.least_zeros * width, free + chance)
        return min(SPARSITY.free_choices * free + max(SPARSITY.chance * width, lost), crowded)

    @cached_property
    def lost_in_noise(self) -> float:
        """How many entries of L c are expected to look zero for any c, in noise: an entry is below its tolerance where
        the cosine of c and the row of L is below their ratio, the chance of which is that ratio times √(2N / π) at
        most."""
        usual = SPARSITY.zero_widths * self.noise * float((1 / self.values).norm()) / self.count**0.5
        ratios = usual / self.left.norm(dim=1)
        return float((ratios * (2 * self.count / math.pi) ** 0.5).clamp_max(1)[~self.only_noise].sum())

    def tolerance(self, directions: Tensor) -> Tensor:
        """Return the bound (M, 1) below which an entry of L c, c (M, N), is zero: its error is noise · ‖S⁻¹ c‖."""
        return SPARSITY.zero_widths * self.noise * (directions / self.values).norm(dim=1, keepdim=True)


def complement(directions: Tensor) -> Tensor:
    """Return an orthonormal basis (N − F, N) of what is orthogonal to F independent directions (F, N)."""
    return torch.linalg.qr(directions.T, mode="complete")[0][:, len(directions) :].T


def independent(points: Tensor, share: float) -> list[int]:
    """Return indices of the points (M, n) more than a share of whose length is outside the span of those before."""
    kept: list[int] = []
    basis = points[:0]
    for i, point in enumerate(points):
        rest = point - (point @ basis.T) @ basis
        if rest.norm() > share * point.norm():
            rest = rest - (rest @ basis.T) @ basis
            basis = torch.cat([basis, (rest / rest.norm())[None]])
            kept.append(i)
    return kept


def repeats(updates: Tensor, rounding: float) -> float:
    """Return in how many rounds a unit repeats its row of the update: rows per dimension of their span, over all units.
    A c that is chosen to be zero on one of them is zero on its multiples.

    updates: (R, W, N), rows of unit w in every round, in an orthonormal basis of the first layer's span. rounding:
    what an entry may be off by.
    """
    by_unit = updates.transpose(0, 1)
    squares = torch.linalg.eigvalsh(by_unit @ by_unit.mT).clamp_min(0)
    bound = rounding**2 * updates.shape[2] + 1e-14 * squares.amax(1, keepdim=True)
    rank = (squares > bound).sum(1).clamp_min(1)
    used = updates.any(2).sum(0)
    return float(used.sum() / rank[used > 0].sum())


def sparsest_of_many(space: DualSpace, coordinates: Tensor, known: Tensor) -> Tensor:
    """Find the c (M, N) of unit length with L c as sparse as possible on units that candidates y (M, N) leave inactive.

    known: (F, N), the y of images that are found, which the start avoids.
    """
    own = torch.nn.functional.normalize(coordinates)
    found = own.clone()
    left = torch.arange(len(own), device=own.device)
    for share in DUAL.start_shares[: 1 if len(known) < CROWDED.all_starts_after * space.count else None]:
        found[left] = _from_start(space, coordinates[left], known, share)
        left = left[space.zeros(found[left]) <= space.explained_zeros]
    return found


def _from_start(space: DualSpace, coordinates: Tensor, known: Tensor, share: float) -> Tensor:
    """Find the same from a start on that share of the inactive units, the surest ones."""
    own = torch.nn.functional.normalize(coordinates)
    if len(own) == 0:
        return own
    others = torch.nn.functional.normalize(known)
    nearest = space.nearest(coordinates)
    idle = (nearest < 0).to(own)
    surest = idle * (nearest <= nearest.quantile(share * idle.mean(), dim=1, keepdim=True))
    squares = PairProducts(space.left)
    c = _least_squares_of_many(squares.gram(surest) + DUAL.avoid_weight * others.T @ others, own)
    for i in range(DUAL.reweightings):
        duals = c @ space.left.T
        epsilon = DUAL.bluntest * (DUAL.sharpest / DUAL.bluntest) ** (i / (DUAL.reweightings - 1)) * _rms(duals, idle)
        c = _least_squares_of_many(squares.gram(idle / (duals.square() + epsilon**2)), own)
    for i in range(DUAL.trims):
        duals = (c @ space.left.T).abs()
        bound = torch.maximum(DUAL.sharpest * 0.1**i * _rms(duals, idle), space.tolerance(c))
        c = _least_squares_of_many(squares.gram(idle * ((duals < bound).to(own) + 1e-9)), own)
    return c


class PairProducts:
    """The products of entries of every row of L (W, N), lower triangles, in which weighted Gram matrices are linear."""

    def __init__(self, left: Tensor) -> None:
        self.count = left.shape[1]
        row, column = self.places = torch.tril_indices(self.count, self.count, device=left.device)
        self.products = left[:, row] * left[:, column]

    def gram(self, weights: Tensor) -> Tensor:
        """Return the lower triangles of Lᵀ diag(w) L, (M, N, N), for weights (M, W), first brought to a mean of one."""
        scaled = weights / weights.mean(1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        full = weights.new_zeros(len(weights), self.count, self.count)
        full[:, self.places[0], self.places[1]] = scaled @ self.products
        return full


def _rms(duals: Tensor, idle: Tensor) -> Tensor:
    """Return the root mean square (M, 1) of duals (M, W) on the inactive units."""
    return ((duals.square() * idle).sum(1, keepdim=True) / idle.sum(1, keepdim=True).clamp_min(1)).sqrt()


def _least_squares_of_many(gram: Tensor, own: Tensor) -> Tensor:
    """Find the c (M, N) of least c · gram c with own · c = 1, scaled to unit length; `own` where a matrix is singular.
    Only the lower triangles of gram (M, N, N) are read."""
    diagonal = torch.diagonal(gram, dim1=1, dim2=2)
    diagonal += 1e-13 * diagonal.mean(1, keepdim=True)
    factor, failed = torch.linalg.cholesky_ex(gram)
    c = torch.cholesky_solve(own[:, :, None], factor)[:, :, 0]
    return torch.where(failed[:, None] == 0, torch.nn.functional.normalize(c), own)


def sparsest(space: DualSpace, coordinates: Tensor, sure: Tensor, known: Tensor) -> Tensor:
    """Find the c (M, N) of unit length with L c as sparse as possible on units that candidates y (M, N) leave inactive.

    sure: (M,) bool, which candidates are close to a private image. known: (F, N), the y of images that are found. The
    start is the c of least energy on those units that nearly avoids known and other sure images, as y_j · c = 0. Once
    most images are known, starts that avoid nothing follow: what is left of a candidate has none of the known duals,
    while the known y may be rough along the images that are missing.
    """
    unit = coordinates / coordinates.norm(dim=1, keepdim=True)
    few_missing = len(known) >= CROWDED.all_starts_after * space.count
    others = torch.cat([known / known.norm(dim=1, keepdim=True), unit[sure]])
    avoid = others.T @ others
    found = [
        _best_of_starts(
            space, units, own, avoid - certain * own.outer(own), len(DUAL.start_shares) if certain else 1, few_missing
        )
        for units, own, certain in zip(space.inactive(coordinates), unit, sure.tolist(), strict=True)
    ]
    return torch.stack(found) if found else coordinates


def sharpened(space: DualSpace, directions: Tensor) -> Tensor:
    """Find the c (M, N) of unit length near those given (M, N), with L c as sparse as possible on its smaller half."""
    found = []
    for own in directions:
        duals = (space.left @ own).abs()
        units = space.left[duals.argsort()[: len(duals) // 2]]
        c = _reweighted(space, units, own, own)
        found.append(own if c is None else _trimmed(space, units, own, c))
    return torch.stack(found) if found else directions


def retry_doubtful(space: DualSpace, coordinates: Tensor, directions: Tensor) -> Tensor:
    """Seek those of the c (F, N) again that are doubtful, which may be mixtures, from images that the others make exact
    until none gains a zero. coordinates: (F, N), the rough y of the images."""
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
        if len(doubtful):
            directions = purified(space, directions.index_copy(0, doubtful, sought))
    return directions


def fewest_zeros(space: DualSpace, directions: Tensor) -> Tensor:
    """Return indices of the doubtful quarter of the c (F, N): those with the fewest zeros."""
    return space.zeros(directions).argsort(stable=True)[: math.ceil(DUAL.doubtful * len(directions))]


def purified(space: DualSpace, directions: Tensor) -> Tensor:
    """Free each of the c (F, N) from what the others are mixed into it, as long as that brings zeros, the likeliest
    mixtures first. For a mixture c_i of another c and c_j, (L c_i)_r / (L c_j)_r is one number t on all units where
    that other dual alone is zero: c_i − t c_j, for the most frequent ratio, has the zeros."""
    mixed = len(directions) > 1
    while mixed:
        mixed = False
        for i in space.zeros(directions).argsort(stable=True).tolist():
            pure = _purest(space, directions, directions @ space.left.T, i)
            if space.zeros(pure[None]) > space.zeros(directions[i][None]):
                directions = directions.index_copy(0, torch.tensor([i], device=directions.device), pure[None])
                mixed = True  # what is pure now may be what is mixed into others
    return directions


def _purest(space: DualSpace, directions: Tensor, duals: Tensor, index: int) -> Tensor:
    """Return the c (N,) of this index less the one of its nearest neighbours whose removal leaves the most zeros.

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


def _best_of_starts(
    space: DualSpace, units: Tensor, own: Tensor, avoid: Tensor, starts: int = 1, free: bool = False
) -> Tensor:
    """Find the c (N,) of one candidate from several starts, of which the first that passes the test ends the search.

    units: (·, N), rows of L, the surest zeros first. own: (N,), y at unit length. avoid: (N, N), the Gram matrix of the
    y to be avoided. starts: how many are tried at most. free: whether as many as there are follow that avoid nothing.
    """
    best = own
    tries = [(share, DUAL.avoid_weight) for share in DUAL.start_shares[:starts]]
    tries += [(share, 0.0) for share in DUAL.start_shares] if free else []
    for share, weight in tries:
        surest = units[: max(int(share * len(units)), len(own))]
        c = _reweighted(space, units, own, _least(surest.T @ surest + weight * avoid, own))
        if c is None:
            continue
        c = _trimmed(space, units, own, c)
        zeros = space.zeros(torch.stack([best, c]))
        best = c if zeros[1] > zeros[0] else best
        if zeros.max() > space.explained_zeros:
            break
    return best


def _reweighted(space: DualSpace, units: Tensor, own: Tensor, c: Tensor) -> Tensor | None:
    """Find the c (N,) of least Σ_r log((l_r · c)² + ε²) over `units` from a start as ε falls; None without hope."""
    enough, sure = space.explained_zeros, False
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
        last, c = c, _least(_weighted(units, 1 / (duals.square() + epsilon**2)), own)
        if sure:
            break
        sure = bool((small > enough) & (1 - (last @ c).abs() < DUAL.still))  # one question: each waits for a GPU
    return c


def _trimmed(space: DualSpace, units: Tensor, own: Tensor, c: Tensor) -> Tensor:
    """Find the c (N,) of least squares on only units that look like zeros, by a bound that falls to rounding."""
    zero = None
    for i in range(DUAL.trims):
        duals = (units @ c).abs()
        bound = DUAL.sharpest * 0.1**i * duals.square().mean().sqrt()
        zero, before = duals < torch.maximum(space.tolerance(c[None])[0, 0], bound), zero
        if before is None or not torch.equal(zero, before):
            c = _least(_weighted(units, zero.to(duals) + 1e-9), own)
    return c


def _weighted(units: Tensor, weight: Tensor) -> Tensor:
    """Return the Gram matrix (N, N) of weighted units."""
    return (units * (weight / weight.mean())[:, None]).T @ units


def _least(gram: Tensor, own: Tensor) -> Tensor:
    """Find the c (N,) of least c · gram c with own · c = 1, scaled to unit length; `own` if the matrix is singular."""
    gram.diagonal().add_(1e-13 * gram.diagonal().mean())
    factor, failed = torch.linalg.cholesky_ex(gram)
    c = torch.cholesky_solve(own[:, None], factor)[:, 0]
    return torch.where(failed == 0, c / c.norm(), own)  # not asked on the host, where a GPU would be waited for
