"""95 % confidence intervals of shares and of areas under ROC curves, for samples as small as a client's."""

import math
from collections.abc import Callable

import scipy  # its parts are imported where they are first used
from scipy.special import betaincinv, ndtri  # scipy.stats has them, too, and takes a worker half a second to import

LEVEL = 0.95
Interval = tuple[float, float]
UNKNOWN: Interval = (math.nan, math.nan)


def exact_interval(successes: int, trials: int) -> Interval:
    """Of a share, at least 95 % whatever it is (Clopper and Pearson 1934): quantiles of two beta distributions."""
    failures, tail = trials - successes, (1 - LEVEL) / 2
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0
    return low, high


def auc_interval(auc: float, positives: int, negatives: int) -> Interval:
    """Of an area under the ROC curve (Newcombe 2006, method 5): all θ with |AUC − θ| ≤ z · s(θ).

    s(θ) is Hanley and McNeil's (1982) standard error with the mean of both sample sizes in place of each. Since it is
    that of θ and not of the estimate, the interval has a width at an AUC of 1 too, where DeLong's has none.
    """
    z, spare = float(ndtri((1 + LEVEL) / 2)), (positives + negatives) / 2 - 1

    def beyond(theta: float) -> float:
        spread = 1 + spare * (1 - theta) / (2 - theta) + spare * theta / (1 + theta)
        return float((auc - theta) ** 2 - z**2 * theta * (1 - theta) * spread / (positives * negatives))

    return _root(beyond, 0.0, auc), _root(beyond, 1.0, auc)


def _root(beyond: Callable[[float], float], end: float, auc: float) -> float:
    """Where `beyond` changes its sign between an end of [0, 1] and the estimate."""
    if auc == end:
        return end
    start = min(max(auc, 1e-12), 1 - 1e-12)  # at 0 and 1 the standard error is 0
    return float(scipy.optimize.brentq(beyond, end, start))
