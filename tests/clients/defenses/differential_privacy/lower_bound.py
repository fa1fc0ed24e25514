"""A lower bound on ε from one training run, by canaries (Steinke, Nasr and Jagielski 2023): what checks an accountant.

Each of m canaries goes into the training by a fair coin. Whoever sees the outcome guesses, for those that he dares to,
whether it was in. If the mechanism is (ε, δ) private under adding and removing one record, right guesses are at most as
frequent as those of randomized response, but for what δ adds; so many right ones prove that ε is larger.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

LARGEST = 50.0  # ε that no number of guesses proves


def epsilon_lower_bound(
    scores: np.ndarray, included: np.ndarray, guesses: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest ε that is refuted at this confidence; 0 where none is.

    scores: (m,), larger for canaries that look as if they had been trained on. included: (m,), whether they were.
    guesses: how many to guess, the half with the largest scores as included and the half with the smallest as left out;
    the others are abstained from. It has to be chosen before looking.
    """
    order = np.argsort(scores)
    half = guesses // 2
    right = int(included[order[-half:]].sum() + (~included[order[:half]]).sum())

    def excess(epsilon: float) -> float:
        return p_value(len(scores), 2 * half, right, epsilon, delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return LARGEST if excess(LARGEST) < 0 else float(brentq(excess, 0.0, LARGEST))


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """At most how probable so many right guesses are where (ε, δ) privacy holds (their Theorem 5.2 and appendix D)."""
    accuracy = expit(epsilon)  # of randomized response
    counts = np.arange(1, right + 1)
    just_missed = np.cumsum(binom.pmf(right - counts, guesses, accuracy)) / counts  # P[v > B ≥ v − i] / i
    share = float(just_missed.max(initial=0.0))
    return min(1.0, float(binom.sf(right - 1, guesses, accuracy)) + 2 * canaries * delta * share)
