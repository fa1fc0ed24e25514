"""How much of a private set a reconstruction gives away, beside the floor (column prefix `floor_`).

`Exposure` adds what the plain scores of returned images miss: candidates that were held back, images that are there but
for an offset, a gain, an augmentation or what an eye overlooks, returned images that are nobody's, and how exposed the
most exposed image is. None of these counts is ever below `recovered`: their matching is the largest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.scoring.images import (
    Distinct,
    Gallery,
    Identification,
    ImageScores,
    Pool,
    Transformation,
    count_images,
    distances,
    score_images,
    ssim,
)
from attacks.scoring.null import Null, Others, permutation_null
from attacks.scoring.recognition import MOST_PUBLIC, Views, comparable, threshold

LOOSE = ("recovered_affine", "recovered_group", "recognized")  # counts of what was returned, looser than `recovered`


@dataclass(frozen=True)
class Hits:
    """Distinct images, D private ones, then Q others of the pool (rows), against M candidates (columns): (D + Q, M).

    l2: distances, in pixel values.
    plain: whether a candidate recovers an image, pixel by pixel.
    loose: by the names in `LOOSE`, without those that have no meaning here.
    """

    l2: np.ndarray
    plain: np.ndarray
    loose: Mapping[str, np.ndarray]

    @classmethod
    def of(
        cls,
        found: Identification,
        scores: ImageScores,
        transformations: Sequence[Transformation] = (),
        least: float = float("nan"),
    ) -> "Hits":
        """Compare candidates with the pool.

        found: their distances.
        scores: of the first, those returned, whose hits count in any case.
        least: likeness from which on an image is recognized, NaN if unknown.
        """
        plain = found.hits()
        matched = np.flatnonzero(scores.recovered)
        plain[matched, scores.match[matched]] = True
        loose = {"recovered_affine": plain | found.affine_hits()}
        if transformations:
            loose["recovered_group"] = plain | found.hits_up_to(transformations)
        if not np.isnan(least):
            loose["recognized"] = plain | found.recognized(least)
        return cls(found.l2, plain, loose)

    def by_count(self, rows: np.ndarray | slice, returned: int) -> dict[str, np.ndarray]:
        """Return the hits on these images, by name of a count: of the candidates returned, and for `held` of all."""
        return {"held": self.plain[rows], **{name: hits[rows, :returned] for name, hits in self.loose.items()}}


@dataclass(frozen=True)
class Exposure:
    """Counts over N private images.

    counts: by `held` and the names in `LOOSE`, without those that have no meaning here; each image as often as it
        occurs.
    floor: the same for public images.
    precision: share of the returned images that hit a private one, a second view of it too; NaN where nothing is
        returned.
    best_l2: from the most exposed image to its nearest candidate, held or not.
    """

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
        """Count the images that are exposed.

        attack: the returned candidates, then those held back.
        scores, floor_l2: (D,), of each image's match.
        copies: (D,), how often each private image occurs.
        """
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
        """Return columns of the leakage table."""
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
    """Return `Exposure.counts`, but of public images."""
    found = floor.by_count(slice(len(copies)), floor.l2.shape[1])
    return {name: count_images(hits, copies) for name, hits in found.items()}


MOST_EXPOSED = 0.95  # quantile over private images


@dataclass(frozen=True)
class LeakageScore:
    """The scores of an attack and of attackers who know nothing, on the same private images.

    ssim: (N,), structural similarity of each match, or of the mean public image.
    floor, guesses: two draws of public images, `floor_size` each: as many as the attack returned, or fewer where the
        pool has no more.
    mean_image: the mean of all public images for every private one; nearer than any draw where a private set is small,
        and never identified.
    class_floor: of public images by the private ones' classes, None where nobody knows these.
    class_recognized: how many private images are recognized in them, NaN where that is not known.
    exposure: what these leave out.
    least: likeness from which on an image is recognized.
    null: the same reconstructions against other images.
    """

    images: ImageScores
    ssim: np.ndarray
    floor: ImageScores
    guesses: ImageScores
    mean_image: ImageScores
    class_floor: ImageScores | None
    class_recognized: float
    floor_size: int
    least: float
    exposure: Exposure
    null: Null

    @property
    def leakage(self) -> float:
        """Mean over private images of max(0, 1 − l2 / floor l2); 1 is exact, 0 for an attack that returns nothing."""
        return float(leakage_by_image(self.images, self.floor).mean())

    @property
    def floor_leakage(self) -> float:
        """The same for another draw of public images: not 0, since every image keeps the better side of chance."""
        return float(above_floor(self.guesses.l2, self.floor.l2).mean())

    @property
    def class_floor_leakage(self) -> float:
        """The same for `class_floor`; NaN where nobody knows the classes."""
        known = self.class_floor
        return float("nan") if known is None else float(above_floor(known.l2, self.floor.l2).mean())

    @property
    def mean_image_leakage(self) -> float:
        return float(above_floor(self.mean_image.l2, self.floor.l2).mean())

    def columns(self) -> dict[str, float | int | None]:
        """Return the score columns of the leakage table."""
        scores, floor, mean_image, known = self.images, self.floor, self.mean_image, self.class_floor
        return {
            "l2_min": float(scores.l2.min()),
            "l2_median": float(np.median(scores.l2)),
            "l2_mean": float(scores.l2.mean()),
            "psnr_best": float(scores.psnr.max()),
            "psnr_mean": float(scores.psnr.mean()),
            "ssim_mean": float(self.ssim.mean()),
            "recovered": int(scores.recovered.sum()),
            "recovered_fraction": float(scores.recovered.mean()),
            "floor_l2_median": float(np.median(floor.l2)),
            "floor_psnr_mean": float(floor.psnr.mean()),
            "floor_recovered_fraction": float(floor.recovered.mean()),
            "leakage": self.leakage,
            "floor_leakage": self.floor_leakage,
            "mean_image_l2_median": float(np.median(mean_image.l2)),
            "mean_image_psnr_mean": float(mean_image.psnr.mean()),
            "mean_image_leakage": self.mean_image_leakage,
            "leakage_floor": max(self.floor_leakage, self.mean_image_leakage),
            "hungarian_psnr_mean": float(scores.hungarian_psnr.mean()),
            "floor_hungarian_psnr_mean": float(floor.hungarian_psnr.mean()),
            **self.exposure.columns(),
            "recognized_threshold": self.least,
            "class_floor_leakage": self.class_floor_leakage,
            "class_floor_recovered_fraction": np.nan if known is None else float(known.recovered.mean()),
            "class_floor_recognized_fraction": self.class_recognized / len(scores.l2),
            "leakage_p95": float(np.quantile(leakage_by_image(scores, floor), MOST_EXPOSED, method="higher")),
            "null_recovered": self.null.recovered,
            "null_recovered_fraction": self.null.recovered / len(scores.l2),
            "null_leakage": self.null.leakage,
            "null_p": self.null.p,
            **{f"null_{name}_p": self.null.count_p.get(name, np.nan) for name in ("recovered", "held", *LOOSE)},
        }

    def samples(self) -> dict[str, np.ndarray]:
        """Return the score columns of the samples table, (N,) each: one entry per private image."""
        scores = self.images
        return {
            "l2": scores.l2,
            "psnr": scores.psnr,
            "ssim": self.ssim,
            "identified": scores.identified,
            "match": scores.match,
            "floor_l2": self.floor.l2,
            "mean_image_l2": self.mean_image.l2,
        }


def above_floor(l2: np.ndarray, floor_l2: np.ndarray) -> np.ndarray:
    """Return max(0, 1 − l2 / floor l2) of each image, (N,)."""
    return np.maximum(0.0, 1.0 - l2 / np.maximum(floor_l2, 1e-12))


def leakage_by_image(images: ImageScores, floor: ImageScores) -> np.ndarray:
    """Return `above_floor`, and 0 for all where nothing was returned, (N,)."""
    return above_floor(images.l2, floor.l2) * (images.match >= 0).any()


def score(
    private: Tensor,
    reconstructed: Tensor,
    pool: Pool,
    generator: np.random.Generator,
    *,
    held: Tensor | None = None,
    transformations: Sequence[Transformation] = (),
    labels: Tensor | None = None,
) -> LeakageScore:
    """Score reconstructions against the private images, and as many public images against them for the floor, drawn
    twice: the second draw plays the attacker for `floor_leakage`.

    private: (N, C, H, W) in [0, 1]; equal ones are one image, which counts as often as it occurs.
    reconstructed: (M, C, H, W), M ≥ 0; what lies outside [0, 1] is clamped, but not for the score up to an offset.
    held: (H, C, H, W), candidates that the attack has and did not return.
    transformations: what clients augment their images by.
    labels: (N,), the classes of the private images, where they and those of the pool are known.
    """
    size, held = min(len(reconstructed), len(pool.public)), reconstructed[:0] if held is None else held
    mean, mean_image = pool.public.mean(0, keepdim=True), score_images(private, pool.public[:0], pool)
    distinct = Distinct.among(private)
    own, first, copies = private[distinct.first], distinct.first, distinct.copies
    gallery = Gallery(torch.cat([own, pool.public, pool.private]))
    private_rows, public = np.arange(len(own)), gallery.numbers[len(own) :][: len(pool.public)]
    draws = [_draw(public, size, generator) for _ in range(2)]
    free, least = _free(gallery, len(own), draws[0]), _least(gallery, len(own), public, len(reconstructed), generator)

    def compare(candidates: Tensor, returned: int, judged: np.ndarray) -> tuple[ImageScores, Hits]:
        known = Identification(gallery, candidates, judged)
        scores = score_images(private, known.candidates[:returned], pool, mean_image, known)
        return scores, Hits.of(known, scores.at(first), transformations, least)

    images, hits = compare(torch.cat([reconstructed, held]), len(reconstructed), np.append(private_rows, free))
    floor, floor_hits = compare(gallery.images[draws[0]], size, private_rows)
    second = Identification(gallery, gallery.images[draws[1]], private_rows)
    guesses = floor if size == len(public) else score_images(private, second.candidates, pool, mean_image, second)
    exposure = Exposure.of(hits, floor_hits, images.at(first), floor.l2[first], copies, len(reconstructed))
    class_floor, recognized, kinds = None, float("nan"), np.zeros(len(gallery.rows), dtype=int)
    if labels is not None and pool.public_labels is not None and pool.private_labels is not None:
        kinds = torch.cat([labels[first], pool.public_labels, pool.private_labels]).numpy()[gallery.rows]
        drawn = gallery.images[public[_draw_by_class(pool.public_labels, labels, size, generator)]]
        class_floor, class_hits = compare(drawn, len(drawn), private_rows)
        recognized = floor_counts(class_hits, copies).get("recognized", float("nan"))
    rows, returned = slice(len(own), None), slice(len(reconstructed))
    others = Others(
        l2=hits.l2[rows, returned],
        floor_l2=distances(gallery.images[free], gallery.images[draws[0]]).numpy(),
        mean_l2=distances(gallery.images[free], mean)[:, 0].numpy() if size else np.zeros(len(free)),
        hits=hits.plain[rows, returned],
        counted=hits.by_count(rows, len(reconstructed)),
        classes=kinds[free],
    )
    counts = {"recovered": int(images.recovered.sum()), **exposure.counts}
    leakage = float(leakage_by_image(images, floor).mean())
    null = permutation_null(leakage, counts, kinds[private_rows], copies, others, generator)
    shown = torch.cat([reconstructed.clamp(0, 1), mean])[images.match[first]]  # −1 is the mean
    floors = (ssim(own, shown)[distinct.of], floor, guesses, mean_image, class_floor, recognized, size)
    return LeakageScore(images, *floors, least, exposure, null)


def _free(gallery: Gallery, count: int, floor: np.ndarray) -> np.ndarray:
    """Return the images of which the null draws, neither private, as the first ones are, nor in the floor; none if they
    are too few for a set."""
    free = np.setdiff1d(np.arange(count, len(gallery.rows)), floor)
    return free if len(free) >= count else free[:0]


def _least(gallery: Gallery, size: int, public: np.ndarray, returned: int, generator: np.random.Generator) -> float:
    """Return the likeness from which an eye knows an image, by that of public images; NaN where too few tell it. 1
    where nothing was returned: comparing public images would be most of what such a score costs. size: how many images
    of the gallery, the first ones, are private. public: (P,), the numbers of those that are public."""
    if not comparable(gallery.images):
        return float("nan")
    if not returned:
        return 1.0
    some = _draw(public, MOST_PUBLIC, generator)
    rows = np.arange(size)
    if size > MOST_PUBLIC:  # these pairs tell it as well
        rows = np.sort(generator.permutation(size)[:MOST_PUBLIC])
    copies, units = rows[:, None] == some, gallery.units[rows]
    centred = np.where(copies, np.nan, (units @ gallery.units[some].T).abs())
    least = threshold(centred, returned)  # no more than the threshold of all views
    moved = Views(gallery.small[some]).likeness(units, least)
    return threshold(np.where(copies, np.nan, moved), returned)


def _draw(public: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Draw `size` public images at random, in the order of the pool."""
    return public[np.sort(generator.permutation(len(public))[:size])]


def _draw_by_class(public_labels: Tensor, labels: Tensor, size: int, generator: np.random.Generator) -> np.ndarray:
    """Draw `size` places of public images at random, or fewer, of every class as large a share as it has of the private
    ones."""
    kinds, counts = np.unique(labels.numpy(), return_counts=True)
    due = size * counts / counts.sum()
    wanted = np.floor(due).astype(int)
    wanted[np.argsort(wanted - due, kind="stable")[: size - wanted.sum()]] += 1  # the largest remainders
    chosen = [
        generator.permutation(np.flatnonzero(public_labels.numpy() == kind))[:number]
        for kind, number in zip(kinds, wanted, strict=True)
    ]
    return np.sort(np.concatenate(chosen))
