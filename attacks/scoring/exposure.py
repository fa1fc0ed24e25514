"""What the plain scores of returned images miss: candidates that were held back, images that are there but for an
offset, a gain or an augmentation, returned images that are nobody's, and how exposed the most exposed image is.

`recovered` needs an image that the attack returned, pixel by pixel. None of these counts is ever below it: they look
for the largest matching among hits that include those of the greedy one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.scoring.identification import Identification, Transformation, count_images
from attacks.scoring.images import ImageScores, Pool


@dataclass(frozen=True)
class Hits:
    """Private images, then all of the pool, against candidates: (N + P, M) each, l2 in pixels and the rest True where a
    candidate recovers an image. affine: up to an offset and a gain per channel. group: up to the clients'
    augmentations, None where they do not augment. numbers: (N + P,), equal images share one. guesses: (M,), theirs."""

    l2: np.ndarray
    plain: np.ndarray
    affine: np.ndarray
    group: np.ndarray | None
    numbers: np.ndarray
    guesses: np.ndarray

    @classmethod
    def of(
        cls,
        private: Tensor,
        candidates: Tensor,
        pool: Pool,
        scores: ImageScores,
        transformations: Sequence[Transformation] = (),
    ) -> "Hits":
        """candidates: (M, C, H, W), not clamped. scores: those of the first of them, whose hits count in any case."""
        found = Identification(torch.cat([private, pool.public, pool.private]), candidates.clamp(0, 1))
        plain = found.hits()
        matched = np.flatnonzero(scores.recovered)
        plain[matched, scores.match[matched]] = True
        affine = plain | found.affine_hits(candidates)
        group = plain | found.hits_up_to(transformations) if transformations else None
        return cls(found.l2, plain, affine, group, found.numbers, found.guesses)


@dataclass(frozen=True)
class Exposure:
    """Of N private images. held: hit by any candidate that the attack has, accepted or not. precision: share of the
    returned images that hit one, a second view of it too; NaN where nothing is returned. affine, group: hit by a
    returned image up to an offset and gain per channel, or up to the clients' augmentations (NaN where they do not
    augment); floor_…: the same for public images. best_l2: from the most exposed image to its nearest candidate, held
    or not."""

    count: int
    num_held: int
    held: int
    precision: float
    affine: int
    floor_affine: int
    group: float
    floor_group: float
    best_l2: float

    @classmethod
    def of(cls, attack: Hits, floor: Hits, scores: ImageScores, floor_l2: np.ndarray, returned: int) -> "Exposure":
        """attack: the returned candidates, then those held back. scores, floor_l2: of the matched ones, (N,)."""
        count, num_candidates = len(scores.l2), attack.l2.shape[1]
        own = attack.plain[:count]
        nearest = np.minimum(scores.l2, attack.l2[:count].min(1, initial=np.inf))
        return cls(
            count=count,
            num_held=num_candidates - returned,
            held=count_images(own),
            precision=float(own[:, :returned].any(0).mean()) if returned else float("nan"),
            affine=count_images(attack.affine[:count, :returned]),
            floor_affine=count_images(floor.affine[:count]),
            group=_group(attack, count, returned),
            floor_group=_group(floor, count),
            best_l2=float(nearest[(nearest / np.maximum(floor_l2, 1e-12)).argmin()]),
        )

    def columns(self) -> dict[str, float | int | None]:
        """Columns of the leakage table."""
        return {
            "num_held": self.num_held,
            "held": self.held,
            "held_fraction": self.held / self.count,
            "precision": self.precision,
            "recovered_affine": self.affine,
            "recovered_affine_fraction": self.affine / self.count,
            "floor_recovered_affine_fraction": self.floor_affine / self.count,
            "recovered_group": None if np.isnan(self.group) else int(self.group),
            "recovered_group_fraction": self.group / self.count,
            "floor_recovered_group_fraction": self.floor_group / self.count,
            "l2_best_exposed": self.best_l2,
        }


def _group(hits: Hits, count: int, returned: int | None = None) -> float:
    return float("nan") if hits.group is None else float(count_images(hits.group[:count, :returned]))
