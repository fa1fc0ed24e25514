"""Account for differential privacy: Gaussian noise exactly, sampled batches by the upper bound of opacus' accountant of
Rényi divergences. Opacus takes a second to import."""

import math
import warnings
from functools import lru_cache

import numpy as np

LARGEST_ORDER = 63  # of the Rényi divergences that opacus' accountant looks at
TOLERANCE = 0.01  # in ε, of its search for the noise
ROUNDING = 1e-6  # by which t, below, is rounded up, so that ε holds in spite of floating point


def gaussian_epsilon(distance: float, delta: float) -> float:
    """Return the smallest ε for which Gaussian noise is (ε, δ) private (Balle and Wang 2018, Theorem 8), rounded up.

    distance: sensitivity over the standard deviation of the noise, Δ/σ. Several releases are one: a vector of them has
    the distance √Σ (Δ/σ)², so the composition is exact (Dong, Roth and Su 2022).

    ε is written as Δ/σ · (Δ/2σ + t); the search is for t, which stays between −Δ/2σ and a few units however large ε is.
    """
    if _gaussian_delta(distance, -distance / 2) <= delta:
        return 0.0
    from scipy.optimize import brentq  # 0.25 s with scipy.special, which runs without such noise are spared
    from scipy.special import ndtri

    t = float(brentq(lambda t: _gaussian_delta(distance, t) - delta, -distance / 2, -ndtri(delta), xtol=1e-12))
    return distance * (distance / 2 + t + ROUNDING)


def _gaussian_delta(distance: float, t: float) -> float:
    """Return Φ(−t) − exp(ε) Φ(−t − Δ/σ), the δ of Balle and Wang's condition at ε = Δ/σ · (Δ/2σ + t).

    exp(ε) alone overflows; as ε = ((t + Δ/σ)² − t²) / 2, the second term is exp(−t²/2) times a scaled erfc.
    """
    from scipy.special import erfcx, ndtr  # likewise

    return float(ndtr(-t) - math.exp(-t * t / 2) * erfcx((t + distance) / math.sqrt(2)) / 2)


@lru_cache
def multiplier_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the noise multiplier that spends (ε, δ) in so many steps, by opacus' search."""
    from opacus.accountants.utils import get_noise_multiplier  # 1.4 s, as all of opacus

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(
            get_noise_multiplier(
                target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps, accountant="rdp"
            )
        )


@lru_cache
def epsilon_of(history: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return ε after (noise multiplier, sampling rate, steps) in turn, as opacus' accountant computes it."""
    from opacus.accountants import RDPAccountant  # likewise
    from opacus.accountants.analysis.rdp import get_privacy_spent

    spent = sum(steps * _divergences(noise, rate) for noise, rate, steps in history)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the order that is optimal at the edge of opacus' grid: an upper bound
        return float(get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=spent, delta=delta)[0])


@lru_cache
def _divergences(noise: float, rate: float) -> np.ndarray:
    """Return the divergences of one step, at every order of opacus. They add up over steps, and take opacus a fifth of
    a second, as long as a round."""
    from opacus.accountants import RDPAccountant  # likewise
    from opacus.accountants.analysis.rdp import compute_rdp

    return compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS)


def smallest_epsilon(delta: float) -> float:
    """Return the ε of no divergence at the largest order α, (log(1/δ) − log α) / (α − 1) + log((α − 1) / α) (Balle et
    al. 2020), plus the tolerance of the search for the noise: for less it does not end."""
    order = LARGEST_ORDER
    return max(0.0, -(math.log(delta) + math.log(order)) / (order - 1) + math.log((order - 1) / order)) + TOLERANCE
