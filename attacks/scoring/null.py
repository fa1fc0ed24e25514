"""The cross-client null: the same reconstructions, scored against as many images that they are no reconstructions of.

Floors (`floor_…`) know nothing, not even what an attack's output looks like: a blurred grey image may
beat every public one. Here the attacker's own prior stays, and what changes is whose images they are held against.
"""

from dataclasses import dataclass

import numpy as np

from attacks.scoring.images import greedy_match

SETS = 99  # of images, so that a p-value is a multiple of 1 %


@dataclass(frozen=True)
class Null:
    """Means over null sets: recovered (images of a set) and leakage. p: of the leakage that was observed. NaN, all of
    them, where there are not enough other images for one set."""

    recovered: float = float("nan")
    leakage: float = float("nan")
    p: float = float("nan")


@dataclass(frozen=True)
class Others:
    """Images of other clients and of nobody's private set, one row each. l2: (Q, M), of every reconstruction. floor_l2:
    (Q, F), of every image of the floor, none of which is among them. mean_l2: (Q,), of the mean public
    image. hits: (Q, M), with at least 20 dB and identified."""

    l2: np.ndarray
    floor_l2: np.ndarray
    mean_l2: np.ndarray
    hits: np.ndarray

    def drawn(self, rows: np.ndarray) -> tuple[int, float]:
        """(recovered, leakage) of the reconstructions against these images, matched as private ones are."""
        match, distance = self._matched(self.l2, rows)
        floor = self._matched(self.floor_l2, rows)[1]
        recovered = self.hits[rows[match >= 0], match[match >= 0]].sum()
        leakage = np.maximum(0.0, 1.0 - distance / np.maximum(floor, 1e-12)).mean() if (match >= 0).any() else 0.0
        return int(recovered), float(leakage)

    def _matched(self, l2: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        match = greedy_match(l2[rows])
        return match, np.column_stack([l2, self.mean_l2])[rows, match]  # −1 is the mean image


def permutation_null(observed: float, count: int, others: Others, generator: np.random.Generator) -> Null:
    """Draw 99 sets of `count` images without replacement, and see how often they are told as well as the private ones.

    p = (1 + sets with at least the observed leakage) / (1 + sets) (Phipson and Smyth 2010): never 0.
    """
    if len(others.l2) < count:
        return Null()
    drawn = [others.drawn(generator.choice(len(others.l2), count, replace=False)) for _ in range(SETS)]
    recovered, leakage = np.array(drawn).T
    return Null(float(recovered.mean()), float(leakage.mean()), p_value(observed, leakage))


def p_value(observed: float, null: np.ndarray) -> float:
    """(1 + how many of `null` are at least `observed`) / (1 + how many there are)."""
    return float((1 + (null >= observed - 1e-12).sum()) / (1 + len(null)))
