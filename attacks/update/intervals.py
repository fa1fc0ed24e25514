"""What an adaptive attacker knows of the distance between the update it sees and the one that training made.

Added Gaussian noise has a standard deviation. What quantization and sparsification did is sharper: every entry lay in
an interval, of the width of a step, of no width where an entry was sent as it is, without end where nothing is known.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import State

LARGEST_ONLY_RATIO = 0.01  # smallest sent entry over the median one, from which on only the largest ones were sent
GRID_TOLERANCE = 0.1  # of a step: what rounding of the parameters may shift a level by
INWARD_SHARE = 0.01  # of the way from the end of an interval to what was sent, its middle: where estimates are drawn to
TRACY_WIDOM_99 = 2.02  # 99 % quantile of the Tracy-Widom law of order one


@dataclass(frozen=True)
class EntryIntervals:
    """The interval in which every entry of an update lay: lowest, highest, of the update's shape, ±∞ where unknown."""

    lowest: Tensor
    highest: Tensor

    def nearest(self, values: Tensor) -> Tensor:
        """The nearest point of every interval."""
        return values.clamp(self.lowest, self.highest)

    def middle(self) -> Tensor:
        """What was sent: the middle of every interval, 0 in those that hold it."""
        return torch.where(self.sent(), (self.lowest + self.highest) / 2, 0)

    def bounded(self) -> Tensor:
        """Bool, where something is known."""
        return self.lowest.isfinite() & self.highest.isfinite()

    def sent(self) -> Tensor:
        """Bool, where the interval does not hold 0: the entry was sent, and is no level of 0."""
        return (self.lowest > 0) | (self.highest < 0)

    def wider(self) -> "EntryIntervals":
        """Twice as wide, as rounding up or down at random leaves them."""
        half = (self.highest - self.lowest) / 2
        return EntryIntervals(self.lowest - half, self.highest + half)

    def without(self, hidden: Tensor) -> "EntryIntervals":
        """With nothing known of the entries `hidden`, bool."""
        return EntryIntervals(self.lowest.masked_fill(hidden, -math.inf), self.highest.masked_fill(hidden, math.inf))


def noise_deviation(delta: State, knowledge: Knowledge) -> float:
    """Standard deviation of the Gaussian noise on an entry of an update; 0 where none is known of.

    noise_scale s is relative to the update before noise, of which ‖Δθ‖² / (1 + s²) is left.
    """
    squares = sum(float(value.double().square().sum()) for value in delta.values())
    entries = sum(value.numel() for value in delta.values())
    relative = knowledge.noise_scale or 0.0
    return math.hypot(knowledge.noise_std or 0.0, relative * (squares / (1 + relative**2) / entries) ** 0.5)


def quantization_step(value: Tensor, bits: int) -> float:
    """Distance of two levels of a tensor that was quantized between its extremes, which are levels themselves."""
    return float(value.max() - value.min()) / (2**bits - 1)


def known_intervals(delta: State, knowledge: Knowledge) -> dict[str, EntryIntervals] | None:
    """The intervals of every tensor's entries; None where neither levels nor left-out entries are known of, and where
    the update shows others, as a sum over clients does. Nor where an entry has a single bit: `possible_entries`.

    Rounding is taken to be to the nearest level. What was left out is unknown, unless the sent entries end in a gap
    around zero: then only the largest ones were sent, and the others are no larger than the smallest of those.
    """
    bits = knowledge.quantization_bits
    if bits == 1 or (bits is None and knowledge.kept_fraction is None):
        return None
    if bits and not all(_on_grid(value, bits) for value in delta.values()):
        return None
    intervals = {}
    for name, value in delta.items():
        half = 0.0 if bits is None else 0.5 * quantization_step(value.double(), bits)
        intervals[name] = EntryIntervals(value.double() - half, value.double() + half)
    if knowledge.kept_fraction is None:
        return intervals
    left_out = {name: ~own.sent() for name, own in intervals.items()}
    number = sum(int((~part).sum()) for part in left_out.values())
    if number > knowledge.kept_fraction * sum(value.numel() for value in delta.values()) + 1:
        return None
    sent = torch.cat([value[~left_out[name]].abs().flatten() for name, value in delta.items()]).double()
    threshold = float(sent.min()) if len(sent) and sent.min() > LARGEST_ONLY_RATIO * sent.median() else math.inf
    return {
        name: EntryIntervals(
            own.lowest.masked_fill(left_out[name], -threshold), own.highest.masked_fill(left_out[name], threshold)
        )
        for name, own in intervals.items()
    }


def possible_entries(delta: State, knowledge: Knowledge) -> dict[str, EntryIntervals] | None:
    """As `known_intervals`, and where an entry has a single bit the side of the middle of both levels that it lay on.

    Nothing is known of a tensor with one level only: its middle is not seen.
    """
    if knowledge.quantization_bits != 1:
        return known_intervals(delta, knowledge)
    if not all(_on_grid(value, 1) for value in delta.values()):
        return None
    sides = {}
    for name, value in delta.items():
        entries = value.double()
        middle = ((entries.min() + entries.max()) / 2).expand_as(entries)
        sides[name] = EntryIntervals(
            middle.masked_fill(entries <= middle, -math.inf), middle.masked_fill(entries >= middle, math.inf)
        )
    return sides


def rounded_intervals(delta: State, initial: State, knowledge: Knowledge) -> dict[str, EntryIntervals] | None:
    """The intervals of an update's entries where the parameters that it led to were sent in few significant bits; None
    where that is not known, and where they are no such numbers, as a mean over clients is not.

    A parameter of exponent e was rounded by at most half of the distance 2^(e − bits) to the next number.
    """
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


def _on_grid(value: Tensor, bits: int) -> bool:
    step = quantization_step(value.double(), bits)
    levels = (value.double() - value.min().double()) / max(step, 1e-300)
    return step == 0 or bool(((levels - levels.round()).abs() < GRID_TOLERANCE).all())


def kept_entries(delta: State, knowledge: Knowledge) -> State | None:
    """1 for the entries of every tensor of which something is known and 0 for those left out; None where none is.

    Where only the largest were sent the others are known to be small, and 0 is nearly right.
    """
    intervals = known_intervals(delta, knowledge) if knowledge.kept_fraction is not None else None
    if intervals is None or all(bool(part.bounded().all()) for part in intervals.values()):
        return None
    return {name: part.bounded().to(delta[name].dtype) for name, part in intervals.items()}


def noise_edge(rows: int, columns: int) -> float:
    """The largest singular value of noise of deviation 1, (rows, columns): exceeded once in a hundred times.

    The edge of the Marchenko-Pastur law, and the Tracy-Widom fluctuation above it (Johnstone 2001, theorem 1.1).
    """
    larger, smaller = max(rows, columns, 2), min(rows, columns)
    edge = (larger - 1) ** 0.5 + smaller**0.5
    width = edge * ((larger - 1) ** -0.5 + smaller**-0.5) ** (1 / 3)
    return (edge**2 + TRACY_WIDOM_99 * width) ** 0.5
