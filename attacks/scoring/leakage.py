"""How much of a private set a reconstruction gives away, beside the floor (column prefix `floor_`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.scoring.exposure import Exposure, Hits
from attacks.scoring.identification import Transformation
from attacks.scoring.images import ImageScores, Pool, distances, score_images
from attacks.scoring.null import Null, Others, permutation_null

MOST_EXPOSED = 0.95  # quantile over private images


@dataclass(frozen=True)
class LeakageScore:
    """The scores of an attack and of attackers who know nothing, on the same private images.

    floor, guesses: two draws of public images, `floor_size` each: as many as the attack returned, or fewer where the
    pool has no more. mean_image: the mean of all public images for every private one; nearer than any draw where a
    private set is small, and never identified. exposure: what these leave out. null: the same reconstructions against
    other images.
    """

    images: ImageScores
    floor: ImageScores
    guesses: ImageScores
    mean_image: ImageScores
    floor_size: int
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
    def mean_image_leakage(self) -> float:
        return float(above_floor(self.mean_image.l2, self.floor.l2).mean())

    def columns(self) -> dict[str, float | int | None]:
        """The score columns of the leakage table."""
        scores, floor, mean_image = self.images, self.floor, self.mean_image
        return {
            "l2_min": float(scores.l2.min()),
            "l2_median": float(np.median(scores.l2)),
            "l2_mean": float(scores.l2.mean()),
            "psnr_best": float(scores.psnr.max()),
            "psnr_mean": float(scores.psnr.mean()),
            "ssim_mean": float(scores.ssim.mean()),
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
            "hungarian_psnr_mean": float(scores.hungarian_psnr.mean()),
            "floor_hungarian_psnr_mean": float(floor.hungarian_psnr.mean()),
            **self.exposure.columns(),
            "leakage_p95": float(np.quantile(leakage_by_image(scores, floor), MOST_EXPOSED, method="higher")),
            "null_recovered": self.null.recovered,
            "null_recovered_fraction": self.null.recovered / len(scores.l2),
            "null_leakage": self.null.leakage,
            "null_p": self.null.p,
        }

    def samples(self) -> dict[str, np.ndarray]:
        """The score columns of the samples table, (N,) each: one entry per private image."""
        scores = self.images
        return {
            "l2": scores.l2,
            "psnr": scores.psnr,
            "ssim": scores.ssim,
            "identified": scores.identified,
            "match": scores.match,
            "floor_l2": self.floor.l2,
            "mean_image_l2": self.mean_image.l2,
        }


def above_floor(l2: np.ndarray, floor_l2: np.ndarray) -> np.ndarray:
    """max(0, 1 − l2 / floor l2) of each image, (N,)."""
    return np.maximum(0.0, 1.0 - l2 / np.maximum(floor_l2, 1e-12))


def leakage_by_image(images: ImageScores, floor: ImageScores) -> np.ndarray:
    """The same, and 0 for all where nothing was returned, (N,)."""
    return above_floor(images.l2, floor.l2) * (images.match >= 0).any()


def score(
    private: Tensor,
    reconstructed: Tensor,
    pool: Pool,
    generator: np.random.Generator,
    *,
    held: Tensor | None = None,
    transformations: Sequence[Transformation] = (),
) -> LeakageScore:
    """Score reconstructions against the private images, and as many public images against them for the floor.

    private: (N, C, H, W) in [0, 1]. reconstructed: (M, C, H, W); M may be anything, 0 too, and what lies outside [0, 1]
    is clamped, but not for the score up to an offset. A second draw of public images plays the attacker for
    `floor_leakage`. held: (H, C, H, W), candidates that the attack has and did not return. transformations: what
    clients augment their images by.
    """
    size, held = min(len(reconstructed), len(pool.public)), reconstructed[:0] if held is None else held
    draws = [_draw(pool.public, size, generator) for _ in range(2)]
    floor, guesses = (score_images(private, draw, pool) for draw in draws)
    images = score_images(private, reconstructed.clamp(0, 1), pool)
    mean_image = score_images(private, pool.public[:0], pool)
    hits = Hits.of(private, torch.cat([reconstructed, held]), pool, images, transformations)
    floor_hits = Hits.of(private, draws[0], pool, floor, transformations)
    exposure = Exposure.of(hits, floor_hits, images, floor.l2, len(reconstructed))
    observed = float(leakage_by_image(images, floor).mean())
    others = _others(hits, floor_hits, len(private), len(reconstructed), _mean_l2(pool, private))
    null = permutation_null(observed, len(private), others, generator)
    return LeakageScore(images, floor, guesses, mean_image, size, exposure, null)


def _others(hits: Hits, floor: Hits, count: int, returned: int, mean_l2: np.ndarray) -> Others:
    """The images of the pool that are neither private ones (nor copies of them) nor in the floor."""
    free = ~np.isin(hits.numbers, hits.numbers[:count]) & ~np.isin(floor.numbers, floor.guesses)
    return Others(hits.l2[free, :returned], floor.l2[free], mean_l2[free], hits.plain[free, :returned])


def _mean_l2(pool: Pool, private: Tensor) -> np.ndarray:
    """Distances to the mean public image, (N + P,), in the order of `Hits`."""
    everyone = torch.cat([private, pool.public, pool.private])
    return distances(everyone, pool.public.mean(0, keepdim=True))[:, 0].numpy()


def _draw(public: Tensor, size: int, generator: np.random.Generator) -> Tensor:
    """`size` public images at random, in the order of the pool."""
    return public[torch.as_tensor(generator.permutation(len(public)))[:size].sort().values]
