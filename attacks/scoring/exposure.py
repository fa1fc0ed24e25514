"""What the plain scores of returned images miss: candidates that were held back, images that are there but for an
offset, a gain, an augmentation or what an eye overlooks, returned images that are nobody's, and how exposed the most
exposed image is.

`recovered` needs an image that the attack returned, pixel by pixel. None of these counts is ever below it: they look
for the largest matching among hits that include those of the greedy one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.scoring.identification import Identification, Transformation, count_images
from attacks.scoring.images import ImageScores, Pool
from attacks.scoring.recognition import Views

LOOSE = ("recovered_affine", "recovered_group", "recognized")  # counts of what was returned, looser than `recovered`


@dataclass(frozen=True)
class Hits:
    """Distinct private images, then all of the pool, against candidates: (D + P, M) each, l2 in pixels and the rest
    True where a candidate recovers an image. plain: pixel by pixel. loose: by the names in `LOOSE`, without those that
    have no meaning here. numbers: (D + P,), equal images share one. guesses: (M,), theirs."""

    l2: np.ndarray
    plain: np.ndarray
    loose: Mapping[str, np.ndarray]
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
        least: float = float("nan"),
    ) -> "Hits":
        """candidates: (M, C, H, W), not clamped. scores: those of the first of them, whose hits count in any case.
        least: likeness from which an eye knows an image, NaN where that is not known."""
        found = Identification(torch.cat([private, pool.public, pool.private]), candidates.clamp(0, 1))
        plain = found.hits()
        matched = np.flatnonzero(scores.recovered)
        plain[matched, scores.match[matched]] = True
        loose = {"recovered_affine": plain | found.affine_hits(candidates)}
        if transformations:
            loose["recovered_group"] = plain | found.hits_up_to(transformations)
        if not np.isnan(least):
            loose["recognized"] = plain | found.recognized(Views(candidates).likeness(found.images), least)
        return cls(found.l2, plain, loose, found.numbers, found.guesses)

    def by_count(self, rows: np.ndarray | slice, returned: int) -> dict[str, np.ndarray]:
        """Of these images, by the name of the count that they make: whatever was returned, and for `held` all."""
        return {"held": self.plain[rows], **{name: hits[rows, :returned] for name, hits in self.loose.items()}}


@dataclass(frozen=True)
class Exposure:
    """Of N private images. counts: by `held` and the names in `LOOSE`, without those that have no meaning here; each
    image as often as it occurs. floor: the same for public images. precision: share of the returned images that hit a
    private one, a second view of it too; NaN where nothing is returned. best_l2: from the most exposed image to its
    nearest candidate, held or not."""

    count: int
    num_held: int
    counts: Mapping[str, int]
    floor: Mapping[str, int]
    precision: float
    best_l2: float

    @classmethod
    def of(
        cls,
        attack: Hits,
        floor: Hits,
        scores: ImageScores,
        floor_l2: np.ndarray,
        copies: np.ndarray,
        returned: int,
    ) -> "Exposure":
        """attack: the returned candidates, then those held back. scores, floor_l2: of the matched ones, (D,). copies:
        (D,), how often each private image occurs."""
        rows, num_candidates = slice(len(copies)), attack.l2.shape[1]
        nearest = np.minimum(scores.l2, attack.l2[rows].min(1, initial=np.inf))
        return cls(
            count=int(copies.sum()),
            num_held=num_candidates - returned,
            counts={name: count_images(hits, copies) for name, hits in attack.by_count(rows, returned).items()},
            floor=floor_counts(floor, copies),
            precision=float(attack.plain[rows, :returned].any(0).mean()) if returned else float("nan"),
            best_l2=float(nearest[(nearest / np.maximum(floor_l2, 1e-12)).argmin()]),
        )

    def columns(self) -> dict[str, float | int | None]:
        """Columns of the leakage table."""
        loose = {
            column: value
            for name in LOOSE
            for column, value in {
                name: self.counts.get(name),
                f"{name}_fraction": self.counts.get(name, np.nan) / self.count,
                f"floor_{name}_fraction": self.floor.get(name, np.nan) / self.count,
            }.items()
        }
        return {
            "num_held": self.num_held,
            "held": self.counts["held"],
            "held_fraction": self.counts["held"] / self.count,
            "precision": self.precision,
            **loose,
            "l2_best_exposed": self.best_l2,
        }


def floor_counts(floor: Hits, copies: np.ndarray) -> dict[str, int]:
    """What public images are counted as, by the names of `Exposure.counts`."""
    found = floor.by_count(slice(len(copies)), floor.l2.shape[1])
    return {name: count_images(hits, copies) for name, hits in found.items()}
