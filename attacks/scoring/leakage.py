"""How much of a private set a reconstruction gives away, beside the floor of an attacker who knows nothing.

This is the one module that sees private images. It takes finished reconstructions: no attack calls it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from skimage.metrics import structural_similarity
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.scoring.matching import greedy_match, hungarian_match

RECOVERED_PSNR = 20.0  # dB, peak 1


@dataclass(frozen=True)
class Pool:
    """The images among which a reconstruction has to single out its own.

    public: (P, C, H, W), images in [0, 1] that belong to nobody's private set. private: (Q, C, H, W), all private
    images of the round, those of other clients too.
    """

    public: Tensor
    private: Tensor


@dataclass(frozen=True)
class ImageScores:
    """One entry per private image, (N,) each. match: index of the reconstruction, -1 where there was none left."""

    match: np.ndarray
    l2: np.ndarray
    psnr: np.ndarray
    ssim: np.ndarray
    identified: np.ndarray
    hungarian_psnr: np.ndarray

    @property
    def recovered(self) -> np.ndarray:
        return self.identified & (self.psnr >= RECOVERED_PSNR)


@dataclass(frozen=True)
class LeakageScore:
    """The scores of an attack and of attackers who know nothing, on the same private images.

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


def score_images(private: Tensor, candidates: Tensor, pool: Pool) -> ImageScores:
    """Match candidates to private images greedily by L2 and score every pair.

    A private image left without a match is scored against the mean public image and counts as not identified.
    """
    mean_image = pool.public.mean(0, keepdim=True)
    distance = distances(private, candidates).numpy()
    match = greedy_match(distance)
    guesses = torch.cat([candidates, mean_image])[match]  # -1 is the mean image
    l2 = (guesses - private).flatten(1).double().norm(dim=1).numpy()
    hungarian = torch.cat([candidates, mean_image])[hungarian_match(distance**2)]
    return ImageScores(
        match=match,
        l2=l2,
        psnr=psnr(private, guesses),
        ssim=np.array([ssim(a, b) for a, b in zip(private, guesses, strict=True)]),
        identified=(match >= 0) & _nearest_is_own(private, guesses, l2, pool),
        hungarian_psnr=psnr(private, hungarian),
    )


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances of flattened images, (N, M), in float64."""
    if len(b) == 0:
        return torch.zeros((len(a), 0), dtype=torch.float64)
    return torch.cdist(a.flatten(1).double(), b.flatten(1).double(), compute_mode="donot_use_mm_for_euclid_dist")


def matched_l2(private: Tensor, candidates: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """((N,) distances of the greedy matching, (N,) which candidate). Raises InputError where there are fewer than N."""
    if len(candidates) < len(private):
        raise InputError(f"{len(candidates)} candidates cannot be matched to {len(private)} images")
    table = distances(private, candidates).numpy()
    match = greedy_match(table)
    return table[np.arange(len(table)), match], match


def psnr(private: Tensor, guesses: Tensor) -> np.ndarray:
    """Peak signal-to-noise ratio in dB with peak 1, (N,); an exact copy counts as 100 dB."""
    mse = ((private - guesses).double() ** 2).flatten(1).mean(1).clamp_min(1e-10)
    return (-10 * torch.log10(mse)).numpy()


def ssim(a: Tensor, b: Tensor) -> float:
    """Structural similarity of two (C, H, W) images in [0, 1]; uniform window of 7 pixels, 3 for images below 16, NaN
    for those that are smaller than that."""
    side = min(a.shape[1:])
    if side < 3:
        return float("nan")
    window = 7 if side >= 16 else 3
    return float(structural_similarity(a.numpy(), b.numpy(), win_size=window, data_range=1.0, channel_axis=0))


def _nearest_is_own(private: Tensor, guesses: Tensor, l2: np.ndarray, pool: Pool) -> np.ndarray:
    """Whether each guess is nearer to its private image than to any other of the pool.

    Exact copies of the private image are no others, nor are those of the guess: an attacker who returns public images
    is asked which of the rest they are nearest to.
    """
    everyone = torch.cat([pool.public, pool.private])
    identified = np.zeros(len(private), dtype=bool)
    for i, (image, guess) in enumerate(zip(private, guesses, strict=True)):
        to_guess = distances(guess[None], everyone)[0]
        other = (everyone != image).flatten(1).any(1) & (everyone != guess).flatten(1).any(1)
        identified[i] = not other.any() or l2[i] < float(to_guess[other].min())
    return identified
