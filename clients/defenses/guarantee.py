"""The guarantee of a mechanism, (ε, δ) differential privacy, its unit, its adversary, its neighbouring data; and what
it is by: Gaussian noise exactly, sampled batches by the upper bound of opacus' accountant of Rényi divergences.
"""

import json
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import TypeAdapter

Adversary = Literal["server", "observer"]
"""The server sees the clients' updates (or their sum), the observer the global checkpoints only."""


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) differential privacy of all rounds so far.

    mechanism: label of its defense.
    unit: it hides one image (`record`) or everything that a client does (`client`).
    adjacency: neighbouring data have one unit more (`add_remove`) or another one (`replace_one`).
    nominal_epsilon: of the mechanism's own formula, if that is another number.
    """

    mechanism: str
    epsilon: float
    delta: float
    unit: Literal["record", "client"]
    against: Literal["server", "observer", "both"]
    adjacency: Literal["add_remove", "replace_one"]
    nominal_epsilon: float | None = None

    @property
    def kind(self) -> tuple[str, str, str, str, float]:
        """The kind: guarantees are compared within one only."""
        return self.mechanism, self.unit, self.against, self.adjacency, self.delta

    def holds_against(self, adversary: Adversary) -> bool:
        return self.against in (adversary, "both")

    def __str__(self) -> str:
        against = "server and observer" if self.against == "both" else self.against
        return f"{self.mechanism}: ε {self.epsilon:.4g} at δ {self.delta:g} of one {self.unit} against {against}"


def worst(of_clients: Iterable[Sequence[Guarantee]]) -> tuple[Guarantee, ...]:
    """Return the largest ε of each kind, in the order of the chain. of_clients: the guarantees of each client."""
    found: dict[tuple[str, str, str, str, float], Guarantee] = {}
    for guarantee in (one for guarantees in of_clients for one in guarantees):
        known = found.get(guarantee.kind)
        if known is None or guarantee.epsilon > known.epsilon:
            found[guarantee.kind] = guarantee
    return tuple(found.values())


def to_json(guarantees: Sequence[Guarantee]) -> str:
    return json.dumps([asdict(guarantee) for guarantee in guarantees])


def from_json(text: str) -> tuple[Guarantee, ...]:
    """Read guarantees, which clients report; raise ValueError if a field is wrong."""
    found = TypeAdapter(tuple[Guarantee, ...]).validate_json(text)
    for guarantee in found:
        if not (guarantee.epsilon >= 0 and 0 <= guarantee.delta <= 1):
            raise ValueError(f"{guarantee} is no guarantee")
    return found


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
    """Return the divergences of a step, which add up, at every order of opacus: it takes a fifth of a second."""
    from opacus.accountants import RDPAccountant  # likewise
    from opacus.accountants.analysis.rdp import compute_rdp

    return compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS)


def smallest_epsilon(delta: float) -> float:
    """Return the ε of no divergence at the largest order α, (log(1/δ) − log α) / (α − 1) + log((α − 1) / α) (Balle et
    al. 2020), plus the tolerance of the search for the noise: for less it does not end."""
    order = LARGEST_ORDER
    return max(0.0, -(math.log(delta) + math.log(order)) / (order - 1) + math.log((order - 1) / order)) + TOLERANCE
