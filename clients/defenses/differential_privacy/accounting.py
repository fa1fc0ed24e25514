"""What differential privacy costs, by opacus' accountant of Rényi divergences. Opacus takes a second to import."""

import math
import warnings
from functools import lru_cache

LARGEST_ORDER = 63  # of the Rényi divergences that opacus' accountant looks at
TOLERANCE = 0.01  # in ε, of its search for the noise


@lru_cache
def multiplier_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The noise multiplier that spends (ε, δ) in so many steps, by opacus' search."""
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(
            get_noise_multiplier(
                target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps, accountant="rdp"
            )
        )


@lru_cache
def epsilon_of(history: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """ε after (noise multiplier, sampling rate, steps) in turn, by opacus' accountant."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = list(history)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the order that is optimal at the edge of opacus' grid: an upper bound
        return float(accountant.get_epsilon(delta))


def smallest_epsilon(delta: float) -> float:
    """The ε of no divergence at all at the largest order α, (log(1/δ) − log α) / (α − 1) + log((α − 1) / α)
    (Balle et al. 2020), and what the search for the noise needs above it: for less it does not end."""
    order = LARGEST_ORDER
    return max(0.0, -(math.log(delta) + math.log(order)) / (order - 1) + math.log((order - 1) / order)) + TOLERANCE
