"""Bound the update that training made, as an adaptive attacker can from the update that was sent.

Of Gaussian noise the attacker knows the standard deviation. Of quantization and sparsification it knows the interval in
which each entry lay: as wide as a step, a point for an entry that was sent as it is, unbounded for an unknown one.

`complete` finds a matrix of low rank from intervals of its entries: the least ‖X − Π(X)‖² over X = A Bᵀ, Π the nearest
point of the intervals, with A and B in turn while Π(X) is held. Where intervals are points or unknown, this is the
completion of a masked matrix (Jain, Netrapalli and Sanghavi 2013). Where entries are missing it starts shrunk, with
‖A‖² + ‖B‖² added (Hastie, Mazumder, Lee and Zadeh 2015).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.update.spectrum import ROUNDING

LARGEST_ONLY_RATIO = 0.01  # of the median sent entry: if the smallest is above, only the largest were sent
GRID_TOLERANCE = 0.1  # of a step: what rounding of the parameters may shift a level by
SIGN_BITS, MOST_SEEN_BITS = 2, 8  # of levels that are looked for: signs and 0 fit the former
INWARD_SHARE = 0.01  # of the way from an interval's nearest point to its middle: so far estimates are drawn inwards
BIASES_LEFT_OUT = 0.05  # share of the units that moved
MOST_KEPT = 0.9  # of the entries; keys of attention have biases that do not move beside weights that do
RESTS = 1e-6  # of a unit's weights: what sums in float32 change is 1e-7 of them
FEW_KEPT = 0.05  # units that one image leaves inactive, and its black pixels, leave a fifth
HALVES = {torch.bfloat16: 8, torch.float16: 11}  # their significant bits, the coarser first
TRACY_WIDOM_99 = 2.02  # 99 % quantile of the Tracy-Widom law of order one


@dataclass(frozen=True)
class EntryIntervals:
    """The interval in which each entry of an update lay.

    lowest, highest: of the update's shape, ±∞ if unknown.
    """

    lowest: Tensor
    highest: Tensor

    def nearest(self, values: Tensor) -> Tensor:
        """Move each value to the nearest point of its interval."""
        return values.clamp(self.lowest, self.highest)

    def middle(self) -> Tensor:
        """Return what was sent: the middle of each interval, or 0 if the interval contains 0."""
        return torch.where(self.sent(), (self.lowest + self.highest) / 2, 0)

    def bounded(self) -> Tensor:
        """Return where (bool) both ends are finite."""
        return self.lowest.isfinite() & self.highest.isfinite()

    def sent(self) -> Tensor:
        """Return where (bool) an entry was sent: its interval does not contain 0."""
        return (self.lowest > 0) | (self.highest < 0)

    def wider(self) -> "EntryIntervals":
        """Return intervals twice as wide, as for stochastic rounding."""
        half = (self.highest - self.lowest) / 2
        return EntryIntervals(self.lowest - half, self.highest + half)

    def without(self, hidden: Tensor) -> "EntryIntervals":
        """Return intervals that tell nothing of the entries `hidden` (bool)."""
        return EntryIntervals(self.lowest.masked_fill(hidden, -math.inf), self.highest.masked_fill(hidden, math.inf))


def noise_deviation(delta: State, knowledge: Knowledge) -> float:
    """Return the standard deviation of known Gaussian noise on an entry of an update, 0 for none. `noise_scale` is
    relative to ‖Δθ‖ without the noise, which is smaller by √(1 + noise_scale²)."""
    squares = sum(float(value.double().square().sum()) for value in delta.values())
    entries = sum(value.numel() for value in delta.values())
    relative = knowledge.noise_scale or 0.0
    return math.hypot(knowledge.noise_std or 0.0, relative * (squares / (1 + relative**2) / entries) ** 0.5)


def quantization_step(value: Tensor, bits: int) -> float | None:
    """Return the distance of adjacent levels of a tensor that was quantized: both extremes are levels, and with 0 among
    them one level may be lacking, or there are as many on either side of it. None if it lies on no such levels."""
    low, high = float(value.min()), float(value.max())
    steps, levels, largest = [(high - low) / (2**bits - 1)], value.double() - low, max(-low, high)
    if bits > 1:
        steps += [(high - low) / (2**bits - 2), largest / (2 ** (bits - 1) - 1), largest / 2 ** (bits - 1)]
    fitting = (s for s in steps if s == 0 or bool(((levels / s - (levels / s).round()).abs() < GRID_TOLERANCE).all()))
    return next(fitting, None)


def has_biases_left_out(update: Tensor) -> bool:
    """Return whether entries of a layer's update (W, in + 1) were left out: biases did not move, beside weights
    that did. Zeros of weights do not tell where there are many images: black pixels have them, too."""
    sizes = update.norm(dim=1)
    moved = update[sizes > ROUNDING * sizes.max()]  # of others a mean of several clients rounds some weights
    return bool((moved[:, -1] == 0).float().mean() > BIASES_LEFT_OUT)


def _leaves_entries_out(delta: State, returned: State) -> bool:
    """Return whether it shows in any layer. One whose biases all stayed may be frozen, or have BatchNorm behind it,
    which leaves them rounding alone. So does a mean of several clients of units that rest in all of them."""
    weights = [name for name, value in delta.items() if name.endswith("weight") and value.dim() > 1]
    biases = {name: delta.get(f"{name.removesuffix('weight')}bias", torch.zeros(1)) for name in weights}
    moved = {name: bias for name, bias in biases.items() if bias.norm() > ROUNDING * delta[name].norm()}
    for name, bias in moved.items():
        if len(bias) != len(delta[name]):  # a transposed convolution
            continue
        layer = torch.cat([delta[name].flatten(1), bias[:, None]], 1)
        at_rest = layer.norm(dim=1) <= RESTS * returned[name].flatten(1).to(layer).norm(dim=1)
        if has_biases_left_out(layer.masked_fill(at_rest[:, None], 0)):
            return True
    return False


def seen_compression(observation: Observation, knowledge: Knowledge) -> str | None:
    """Say what anybody sees of a compressed update: levels, or that parameters came back in 16 bits, or if entries were
    left out their share; and what may read it. None if it shows nothing of these."""
    delta, last = observation.one_round()[0].delta(), [observation.final[name] for name in observation.trainable]
    levels = range(SIGN_BITS, MOST_SEEN_BITS + 1)
    fits = (bits for bits in levels if all(quantization_step(value, bits) is not None for value in delta.values()))
    field, value = "quantization_bits", float(next(fits, SIGN_BITS))
    if value > SIGN_BITS:
        seen = f"the update's entries take {2**value:.0f} values or fewer in each tensor, as where they are quantized"
    else:
        moved = torch.cat([value.flatten() for value in delta.values() if value.any()])
        share = float((moved != 0).double().mean())
        if half := next((half for half in HALVES if all(v.equal(v.to(half).to(v)) for v in last)), None):
            seen = f"parameters came back in {str(half).removeprefix('torch.')}, whose rounding hides the update"
            field, value = "significant_bits", HALVES[half]
        elif share > MOST_KEPT or not (
            share < FEW_KEPT or _leaves_entries_out(delta, observation.final)
        ):  # one step of Adam looks as signs do
            return None
        else:
            seen = f"{1 - share:.0%} of the update's entries are 0, as where they are left out"
            field, value = "kept_fraction", math.ceil(share * 100) / 100
    say = f"say --know {field}={value:g}, and " if getattr(knowledge, field) is None else ""
    return f"{seen}: {say}of few steps try 'gradient_matching', told learning_rate and steps, on what was sent"


def known_intervals(delta: State, knowledge: Knowledge) -> dict[str, EntryIntervals] | None:
    """Return the intervals of every tensor's entries. None if the attacker knows of neither levels nor entries left
    out, if the update does not show them, or if an entry has a single bit (see `possible_entries`).

    Rounding is assumed to be to the nearest level. An entry that was left out is unknown, unless the sent ones leave a
    gap around zero: then it is no larger than the smallest of those.
    """
    bits = knowledge.quantization_bits
    if bits == 1 or (bits is None and knowledge.kept_fraction is None):
        return None
    intervals = {}
    for name, value in delta.items():
        if (step := 0.0 if bits is None else quantization_step(value, bits)) is None:
            return None
        intervals[name] = EntryIntervals(value.double() - step / 2, value.double() + step / 2)
    if knowledge.kept_fraction is None:
        return intervals
    left_out = {name: ~own.sent() for name, own in intervals.items()}
    number = sum(int((~part).sum()) for part in left_out.values())
    if number > knowledge.kept_fraction * sum(value.numel() for value in delta.values()) + 1:
        return None
    sent = torch.cat([value[~left_out[name]].abs().flatten() for name, value in delta.items()]).double()
    threshold = float(sent.min()) if len(sent) and sent.min() > LARGEST_ONLY_RATIO * sent.median() else math.inf
    for name, own in intervals.items():
        ends = ((own.lowest, -threshold), (own.highest, threshold))
        intervals[name] = EntryIntervals(*(end.masked_fill(left_out[name], bound) for end, bound in ends))
    return intervals


def possible_entries(delta: State, knowledge: Knowledge) -> dict[str, EntryIntervals] | None:
    """Do as `known_intervals`. A single bit tells on which side of the middle between both levels an entry lay."""
    if knowledge.quantization_bits != 1:
        return known_intervals(delta, knowledge)
    if any(quantization_step(value, 1) is None for value in delta.values()):
        return None
    sides = {}
    for name, value in delta.items():
        entries = value.double()
        middle = ((entries.min() + entries.max()) / 2).expand_as(entries)
        below, above = middle.masked_fill(entries <= middle, -math.inf), middle.masked_fill(entries >= middle, math.inf)
        sides[name] = EntryIntervals(below, above)
    return sides


def rounded_intervals(delta: State, initial: State, knowledge: Knowledge) -> dict[str, EntryIntervals] | None:
    """Return the intervals of an update's entries if the parameters were sent in few significant bits, each rounded by
    at most half of the distance 2^(exponent − bits) to the next number; None if they were not."""
    bits, intervals = knowledge.significant_bits, {}
    if bits is None:
        return None
    for name, change in delta.items():
        start = initial[name].double()
        value = start + change.double()
        spacing = torch.where(value == 0, 0, torch.exp2(torch.frexp(value).exponent.double() - bits))
        off = (value - (value / spacing).round() * spacing).masked_fill(value == 0, 0)
        if bool((off.abs() > GRID_TOLERANCE * spacing).any()):
            return None
        intervals[name] = EntryIntervals(value - spacing / 2 - start, value + spacing / 2 - start)
    return intervals


def kept_entries(delta: State, knowledge: Knowledge) -> State | None:
    """Return 1 for each entry of which something is known and 0 for the others; None if all are known."""
    intervals = known_intervals(delta, knowledge) if knowledge.kept_fraction is not None else None
    if intervals is None or all(bool(part.bounded().all()) for part in intervals.values()):
        return None
    return {name: part.bounded().to(delta[name].dtype) for name, part in intervals.items()}


def noise_edge(rows: int, columns: int) -> float:
    """Return the singular value that noise of deviation 1, (rows, columns), exceeds once in a hundred times: the edge
    of the Marchenko-Pastur law, and the Tracy-Widom fluctuation above it (Johnstone 2001, theorem 1.1)."""
    larger, smaller = max(rows, columns, 2), min(rows, columns)
    edge = (larger - 1) ** 0.5 + smaller**0.5
    width = edge * ((larger - 1) ** -0.5 + smaller**-0.5) ** (1 / 3)
    return (edge**2 + TRACY_WIDOM_99 * width) ** 0.5


MAX_ITERATIONS = 100
# Where entries are missing, the first iteration is shrunk by this share of the largest singular value, and
# every further one by this factor less.
STARTING_SHRINKAGE, SHRINKAGE_DECAY = 0.1, 0.85
ENTRIES_PER_UNKNOWN = 1.5  # known entries that a row needs per unknown, to be solved for at all
# The iteration stops at a step below the first share of the distance to the received update; if all intervals are wide,
# below the second share of it or the third of the matrix itself: it then converges no further.
STOP_STEP, STOP_STEP_INTERVALS, STOP_STEP_MATRIX = 1e-4, 1e-3, 5e-5
EXACT_MISFIT = 1e-7  # relative to the matrix, below which float32 parameters tell no more
RELATIVE_RIDGE = 1e-6  # of the mean square of a factor's column: above the rounding of normal matrices in float32
INSIDE_WEIGHT = 0.1  # of an entry that lies inside its interval: it is held where it is, but loosely
# Rank above which all entries weigh 1, if all have intervals: slower to converge, but one system for all rows.
SHARED_SYSTEM_RANK = 64
ENTRIES_AT_A_TIME = 2**25  # of the normal matrices
HELD_OUT_SHARE = 0.05  # of the known entries
REQUIRED_IMPROVEMENT = 0.7  # the held-out misfit has to fall to this share for a higher rank to be right


@dataclass(frozen=True)
class Completed:
    """A matrix of low rank that was completed from intervals.

    matrix: (m, n), of the rank sought.
    misfit: ‖X − Π(X)‖ / ‖X‖.
    """

    matrix: Tensor
    misfit: float


def unknowns(rows: int, columns: int, rank: int) -> int:
    """Return the degrees of freedom of a matrix of that rank."""
    return rank * (rows + columns - rank)


def complete(intervals: EntryIntervals, rank: int) -> Completed:
    """Find the matrix of this rank in the intervals, or nearest to them. Rows and columns of which nothing was sent are
    zero."""
    sent = intervals.sent()
    matrix = torch.zeros_like(intervals.lowest)
    rows, columns = sent.any(1).nonzero()[:, 0], sent.any(0).nonzero()[:, 0]
    if not len(rows):
        return Completed(matrix, 0.0)
    # such a row or column would start at zero, and no step of the iteration would move it
    part = EntryIntervals(intervals.lowest[rows][:, columns], intervals.highest[rows][:, columns])
    found = _completed(part, min(rank, len(rows), len(columns)))
    matrix[rows[:, None], columns] = found.matrix
    return Completed(matrix, found.misfit)


def _completed(intervals: EntryIntervals, rank: int) -> Completed:
    known = intervals.bounded()
    known = known & (known.sum(1, keepdim=True) >= ENTRIES_PER_UNKNOWN * rank)
    rows = FactorProblem.of(intervals.lowest, intervals.highest, known)
    columns = FactorProblem.of(*(part.T.contiguous() for part in (intervals.lowest, intervals.highest, known)))
    share = float(known.double().mean())
    start = torch.where(known, rows.middle, 0) / max(share, 1e-12)
    left, values, right = torch.linalg.svd(start, full_matrices=False)
    a, b = left[:, :rank] * values[:rank].sqrt(), right[:rank].T * values[:rank].sqrt()
    before, misfit = a @ b.T, 0.0
    relative_shrinkage = 0.0 if rows.complete else STARTING_SHRINKAGE
    for i in range(MAX_ITERATIONS):
        shrinkage = float(values[0]) * share * relative_shrinkage * SHRINKAGE_DECAY**i
        a = rows.solved(before, b, a, shrinkage)
        b = columns.solved(b @ a.T, a, b, shrinkage)
        matrix = a @ b.T
        missed, distance = rows.misfit(matrix)
        size, moved = max(float(matrix.norm()), 1e-300), float((matrix - before).norm())
        before, misfit = matrix, missed / size
        stop = max(STOP_STEP_INTERVALS * distance, STOP_STEP_MATRIX * size) if rows.wide.all() else STOP_STEP * distance
        if misfit < EXACT_MISFIT or moved < stop:
            break
    return Completed(before, misfit)


@dataclass(frozen=True)
class FactorProblem:
    """The least-squares problem of one factor: intervals (m, n), a row for each row of the factor.

    known: bool, entries that count.
    complete: whether all do.
    wide: bool, intervals that are no points.
    middle: of the intervals, 0 in those that contain 0.
    outer, inner: the target of an estimate X is outer · Π(X) + inner, the nearest point, and for sent entries a little
        nearer to the middle.
    """

    lowest: Tensor
    highest: Tensor
    known: Tensor
    complete: bool
    wide: Tensor
    middle: Tensor
    outer: Tensor
    inner: Tensor

    @classmethod
    def of(cls, lowest: Tensor, highest: Tensor, known: Tensor) -> "FactorProblem":
        intervals = EntryIntervals(lowest, highest)
        middle, outer = intervals.middle(), torch.ones_like(lowest).masked_fill_(intervals.sent(), 1 - INWARD_SHARE)
        return cls(lowest, highest, known, bool(known.all()), lowest < highest, middle, outer, INWARD_SHARE * middle)

    def misfit(self, matrix: Tensor) -> tuple[float, float]:
        """Return (‖X − Π(X)‖, the distance of X (m, n) from what was sent), both over known entries."""
        missed, distance = matrix - matrix.clamp(self.lowest, self.highest), matrix - self.middle
        if not self.complete:
            missed, distance = missed.where(self.known, 0), distance.where(self.known, 0)
        return float(missed.norm()), float(distance.norm())

    def solved(self, matrix: Tensor, factor: Tensor, own: Tensor, shrinkage: float) -> Tensor:
        """Return A (m, r) that minimizes Σ (A Bᵀ − target)² + shrinkage ‖A‖² over known entries. matrix: A Bᵀ (m, n) so
        far. factor: B (n, r). own: A so far."""
        nearest = matrix.clamp(self.lowest, self.highest)
        missing = torch.addcmul(self.inner, nearest, self.outer).sub_(matrix)
        rank = factor.shape[1]
        damping = float(RELATIVE_RIDGE * factor.square().sum() / rank) + shrinkage + 1e-300
        if rank > SHARED_SYSTEM_RANK and self.complete:
            gram = factor.T @ factor
            gram.diagonal().add_(damping)
            return own + torch.cholesky_solve((missing @ factor - shrinkage * own).T, torch.linalg.cholesky(gram)).T
        weight = torch.where((nearest == matrix) & self.wide, INSIDE_WEIGHT, 1.0)
        if not self.complete:
            weight = weight * self.known
        right = (weight * missing) @ factor - shrinkage * own
        column, row = torch.triu_indices(rank, rank, device=own.device)
        products = factor[:, row] * factor[:, column]  # of each pair of columns once: the matrices are symmetric
        scale = products.abs().max().clamp_min(1e-300)
        products = (products / scale).float()
        step = torch.empty_like(own)
        for rows in torch.arange(len(own), device=own.device).split(max(1, ENTRIES_AT_A_TIME // rank**2)):
            gram = own.new_zeros(len(rows), rank, rank)
            gram[:, row, column] = (weight[rows].float() @ products).to(own.dtype) * scale
            gram.diagonal(dim1=1, dim2=2).add_(damping)
            step[rows] = torch.cholesky_solve(right[rows, :, None], torch.linalg.cholesky(gram))[:, :, 0]
        return own + step


def find_rank(intervals: EntryIntervals, most: int, generator: torch.Generator) -> int:
    """Find the rank at which the misfit on held-out entries stops falling: double it until then, then bisect."""
    drawn = torch.rand(intervals.lowest.shape, generator=generator).to(intervals.lowest.device)
    hidden = intervals.sent() & (drawn < HELD_OUT_SHARE)
    seen = intervals.without(hidden)
    values = intervals.middle()[hidden]
    cache: dict[int, float] = {}

    def error(rank: int) -> float:
        if rank not in cache:
            cache[rank] = float((complete(seen, rank).matrix[hidden] - values).norm())
        return cache[rank]

    rank = 1
    error(rank)
    while 2 * rank <= most and error(2 * rank) < min(cache.values()) / REQUIRED_IMPROVEMENT:
        rank *= 2
    best = min(cache.values())
    high = min(tried for tried, left in cache.items() if left < best / REQUIRED_IMPROVEMENT)
    low = high // 2
    while high - low > 1:  # the error is flat from the true rank on, or rises
        middle = (low + high) // 2
        if error(middle) < best / REQUIRED_IMPROVEMENT:
            high = middle
        else:
            low = middle
    return high
