"""The cross-client null: the same reconstructions, scored against as many images that they are no reconstructions of.

Floors (`floor_…`) know nothing, not even what an attack's output looks like: a blurred grey image may beat every public
one. Here the attacker's own prior stays, and it is held against others' images, of the same classes where known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from attacks.scoring.images import count_images, greedy_match

SETS = 99  # of images, so that a p-value is a multiple of 1 %


@dataclass(frozen=True)
class Null:
    """Means over null sets: recovered (images of a set) and leakage.

    p: of the leakage that was observed.
    count_p: of each count. NaN, all of them, where there are not enough other images for one set.
    """

    recovered: float = float("nan")
    leakage: float = float("nan")
    p: float = float("nan")
    count_p: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Others:
    """Distinct images of other clients and of nobody's private set, one row each.

    l2: (Q, M), of every reconstruction.
    floor_l2: (Q, F), of every image of the floor, none of which is among them.
    mean_l2: (Q,), of the mean public image.
    hits: (Q, M), with at least 20 dB and identified.
    counted: the hits of further counts, (Q, any).
    classes: (Q,), all the same where they are not known.
    """

    l2: np.ndarray
    floor_l2: np.ndarray
    mean_l2: np.ndarray
    hits: np.ndarray
    counted: Mapping[str, np.ndarray]
    classes: np.ndarray

    def drawn(self, rows: np.ndarray, copies: np.ndarray) -> tuple[float, dict[str, int]]:
        """Return (leakage, counts) of reconstructions against these images, each counted `copies` times, (rows,)."""
        (match, distance), (_, floor) = (self._matched(l2, rows) for l2 in (self.l2, self.floor_l2))
        found = match >= 0
        recovered = int(copies[found][self.hits[rows[found], match[found]]].sum())
        leakage = np.average(np.maximum(0.0, 1.0 - distance / np.maximum(floor, 1e-12)), weights=copies)
        counts = {name: count_images(hits[rows], copies) for name, hits in self.counted.items()}
        return float(leakage) * bool(found.any()), {"recovered": recovered, **counts}

    def _matched(self, l2: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        match, distance = greedy_match(l2[rows]), self.mean_l2[rows]
        found = match >= 0
        distance[found] = l2[rows[found], match[found]]
        return match, distance


def permutation_null(
    leakage: float,
    counts: Mapping[str, int],
    classes: np.ndarray,
    copies: np.ndarray,
    others: Others,
    generator: np.random.Generator,
) -> Null:
    """Draw 99 sets of as many images of each class, with replacement, and see how often they are told as well as the
    private ones: p = (1 + sets with at least the observed leakage, or count) / (1 + sets) (Phipson and Smyth 2010).
    classes: (D,) of the distinct private images. copies: (D,), how often each occurs."""
    rows = {kind: np.flatnonzero(others.classes == kind) for kind in np.unique(classes)}
    if any(len(rows[kind]) < (classes == kind).sum() for kind in rows):
        return Null()
    drawn = []
    for _ in range(SETS):
        chosen = np.empty(len(classes), dtype=int)
        for kind in rows:
            chosen[classes == kind] = generator.choice(rows[kind], (classes == kind).sum())
        once, of = np.unique(chosen, return_inverse=True)
        drawn.append(others.drawn(once, np.bincount(of, copies).astype(int)))
    leakages = np.array([one for one, _ in drawn])
    found = {name: np.array([one[name] for _, one in drawn]) for name in counts}
    p = {name: p_value(count, found[name]) for name, count in counts.items()}
    return Null(float(found["recovered"].mean()), float(leakages.mean()), p_value(leakage, leakages), p)


def p_value(observed: float, null: np.ndarray) -> float:
    """Return (1 + how many of `null` are at least `observed`) / (1 + how many there are)."""
    return float((1 + (null >= observed - 1e-12).sum()) / (1 + len(null)))
