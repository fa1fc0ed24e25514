"""Which candidates are members, at a false-positive rate that images held out calibrate; and confidence intervals.

Outsiders are images that are known to be no members. A candidate that is none either is exchangeable with them, so that
the share (k + 1) / (n + 1) of such candidates scores above the (k + 1)-th largest of n outsiders' scores (split
conformal prediction; Vovk, Gammerman and Shafer 2005). How many of Q candidates do is then beta-binomial, with
parameters k + 1 and n − k, which says whether as many as were told may be chance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import scipy  # its parts are imported where they are first used
from torch import Tensor

RATES = (0.001, 0.01, 0.1)  # of false alarms, the strictest first
FEWEST_OUTSIDERS = round(1 / RATES[-1]) - 1  # that calibrate any of them
CHANCE = 0.05  # probability of as many by chance, up to which candidates are told, over all tests that were made
# ρ of a candidate, up to which it lies in the span of an update of a clear rank. The update's own images leave rounding
# alone, 1e-9 and less, and others some hundredths at least.
OUTSIDE = 0.01


def beats_chance(p: Any, tests: int = 1) -> Any:
    """Return whether a probability by chance, or each of a column, is small among so many tests (Bonferroni); NaN is
    not."""
    return p * max(1, tests) <= CHANCE


@dataclass(frozen=True)
class Calibrated:
    """Which candidates are members, at a calibrated false-positive rate.

    candidates, outsiders: how many there are.
    rate: the false-positive rate.
    threshold: score, −log ρ, above which a candidate counts as a member.
    passed: how many outsiders may reach above it.
    told: how many candidates do.
    p: probability of at least as many where none is a member.
    members: (Q,), which candidates do.
    """

    candidates: int
    outsiders: int
    rate: float
    threshold: float
    passed: int
    told: int
    p: float
    members: tuple[bool, ...]

    @classmethod
    def of(cls, residual: Tensor, outsiders: Tensor) -> "Calibrated | None":
        """Calibrate on the residuals ρ of images held out (n,), at the strictest rate that n images can keep, and judge
        candidates by theirs (Q,). Returns None where the images are too few for any rate."""
        number = len(outsiders)
        passed = {rate: math.floor(rate * (number + 1) + 1e-9) - 1 for rate in RATES}
        rate = next((rate for rate in RATES if passed[rate] >= 0), None)
        if rate is None:
            return None
        scores, others = (-values.double().log() for values in (residual, outsiders))
        threshold = float(others.sort(descending=True).values[passed[rate]])
        members = scores > threshold
        told = int(members.sum())
        p = float(scipy.stats.betabinom.sf(told - 1, len(scores), passed[rate] + 1, number - passed[rate]))
        return cls(len(scores), number, rate, threshold, passed[rate], told, p, tuple(members.tolist()))

    @property
    def tells(self) -> bool:
        """Whether this update, the only one that was tested, tells members from others."""
        return bool(beats_chance(self.p))

    def columns(self) -> dict[str, float | int]:
        """Make the columns of the leakage table."""
        return {
            "membership_candidates": self.candidates,
            "membership_told": self.told,
            "membership_fpr": self.rate,
            "membership_threshold": self.threshold,
            "membership_p": self.p,
        }


LEVEL = 0.95
Interval = tuple[float, float]
UNKNOWN: Interval = (math.nan, math.nan)


def exact_interval(successes: int, trials: int) -> Interval:
    """Compute an interval that covers a share with at least 95 % (Clopper and Pearson 1934)."""
    failures, tail = trials - successes, (1 - LEVEL) / 2
    low = float(scipy.special.betaincinv(successes, failures + 1, tail)) if successes else 0.0
    high = float(scipy.special.betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0
    return low, high


def auc_interval(auc: float, positives: int, negatives: int) -> Interval:
    """Compute the interval of an area under the ROC curve (Newcombe 2006, method 5): all θ with |AUC − θ| ≤ z · s(θ).

    s(θ) is Hanley and McNeil's (1982) standard error with the mean of both sample sizes in place of each, of θ and not
    of the estimate: the interval has a width at an AUC of 1 too.
    """
    z, spare = float(scipy.special.ndtri((1 + LEVEL) / 2)), (positives + negatives) / 2 - 1

    def beyond(theta: float) -> float:
        spread = 1 + spare * (1 - theta) / (2 - theta) + spare * theta / (1 + theta)
        return float((auc - theta) ** 2 - z**2 * theta * (1 - theta) * spread / (positives * negatives))

    return _root(beyond, 0.0, auc), _root(beyond, 1.0, auc)


def _root(beyond: Callable[[float], float], end: float, auc: float) -> float:
    """Find where `beyond` changes its sign between an end of [0, 1] and the estimate."""
    if auc == end:
        return end
    start = min(max(auc, 1e-12), 1 - 1e-12)  # at 0 and 1 the standard error is 0
    return float(scipy.optimize.brentq(beyond, end, start))
