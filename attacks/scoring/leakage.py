"""How much of a private set a reconstruction gives away, beside the uninformed baseline (column prefix `floor_`)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.scoring.images import ImageScores, Pool, score_images


@dataclass(frozen=True)
class LeakageScore:
    """The scores of an attack and of uninformed attackers, on the same private images.

    floor, guesses: two draws of public images, `floor_size` each: as many as the attack returned, or fewer where the
    pool has no more. mean_image: the mean of all public images for every private one; nearer than any draw where a
    private set is small, and never identified.
    """

    images: ImageScores
    floor: ImageScores
    guesses: ImageScores
    mean_image: ImageScores
    floor_size: int

    @property
    def leakage(self) -> float:
        """Mean over private images of max(0, 1 − l2 / floor l2); 1 is exact, 0 for an attack that returns nothing."""
        return self._above_floor(self.images) if (self.images.match >= 0).any() else 0.0

    @property
    def floor_leakage(self) -> float:
        """The same for another draw of public images: not 0, since every image keeps the better side of chance."""
        return self._above_floor(self.guesses)

    @property
    def mean_image_leakage(self) -> float:
        return self._above_floor(self.mean_image)

    def _above_floor(self, scores: ImageScores) -> float:
        return float(np.maximum(0.0, 1.0 - scores.l2 / np.maximum(self.floor.l2, 1e-12)).mean())

    def columns(self) -> dict[str, float | int]:
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


def score(private: Tensor, reconstructed: Tensor, pool: Pool, generator: np.random.Generator) -> LeakageScore:
    """Score reconstructions against the private images, and as many public images against them for the floor.

    private: (N, C, H, W) and reconstructed: (M, C, H, W), in [0, 1]; M may be anything, 0 too. A second draw of public
    images plays the attacker for `floor_leakage`.
    """
    size = min(len(reconstructed), len(pool.public))
    floor, guesses = (score_images(private, _draw(pool.public, size, generator), pool) for _ in range(2))
    return LeakageScore(
        images=score_images(private, reconstructed.clamp(0, 1), pool),
        floor=floor,
        guesses=guesses,
        mean_image=score_images(private, pool.public[:0], pool),
        floor_size=size,
    )


def _draw(public: Tensor, size: int, generator: np.random.Generator) -> Tensor:
    """`size` public images at random, in the order of the pool."""
    return public[torch.as_tensor(generator.permutation(len(public)))[:size].sort().values]
