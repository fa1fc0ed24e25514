"""The singular values and the row space of a layer's update."""

from dataclasses import dataclass

import torch
from torch import Tensor

CLEAR_GAP = 10.0  # ratio of neighbouring singular values: 2 to 4 under Adam, above 100 for SGD in float32
ROUNDING = 1e-4  # of the largest singular value: rounding of float32 parameters lies below, images above


@dataclass(frozen=True)
class Spectrum:
    """The singular values of an update (out, in) and its row space.

    values: (R,), largest first, R the smaller side once empty rows and columns are gone; rows, columns: how many are
    left of each. vectors: (R, in), the right singular vectors, float64. R is 0 for an update of zero.
    """

    values: Tensor
    vectors: Tensor
    rows: int
    columns: int

    @classmethod
    def of(cls, update: Tensor) -> "Spectrum":
        """By the eigenvalues of the smaller Gram matrix, in float64: good down to 1e-8 of the largest value, below the
        rounding of float32 parameters, and several times faster than a singular value decomposition."""
        filled = update.abs().sum(0) > 0
        kept = update[update.abs().sum(1) > 0][:, filled].double()
        rows, columns = kept.shape
        if not rows:
            return cls(kept.new_zeros(0), kept.new_zeros(0, update.shape[1]), 0, 0)
        if rows < columns:
            squares, left = torch.linalg.eigh(kept @ kept.T)
            right = left.T @ kept
            right /= right.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        else:
            squares, left = torch.linalg.eigh(kept.T @ kept)
            right = left.T
        values = squares.flip(0).clamp_min(0).sqrt()
        vectors = torch.zeros(len(values), update.shape[1], dtype=torch.float64, device=update.device)
        vectors[:, filled] = right.flip(0)
        return cls(values.clamp_min(values[0] * 1e-8), vectors, rows, columns)

    def count(self) -> int:
        """The rank above the noise floor; for a first layer, the number of images."""
        return rank_above_noise(self.values, self.rows, self.columns).count

    def outside(self, rank: int) -> float:
        """‖Δ − Δ_rank‖ / ‖Δ‖: the share of the update that its best approximation of this rank leaves out."""
        return float(self.values[rank:].norm() / self.values.norm())

    def noise(self, rank: int) -> float:
        """Standard deviation of an entry of what that approximation leaves out."""
        return float(self.values[rank:].norm()) / (self.rows * self.columns) ** 0.5

    def share(self, deviation: float) -> float:
        """‖E‖ / ‖Δ‖ of noise E of so large a standard deviation on an entry."""
        return deviation * (self.rows * self.columns) ** 0.5 / float(self.values.norm())

    def above_noise(self) -> int:
        """How many singular values stand above the threshold of Gavish and Donoho, for noise of unknown level."""
        return int((self.values > gavish_donoho(self.rows, self.columns) * self.values.median()).sum())

    def median_noise(self) -> float:
        """‖E‖ / ‖Δ‖ of noise E of independent entries, from the median singular value: the median of the
        Marchenko-Pastur law is about 1 − β/3 at β = rows / columns, in units of the longer side (within 3 %)."""
        shape = min(self.rows, self.columns) / max(self.rows, self.columns)
        deviation = float(self.values.median()) / (max(self.rows, self.columns) * (1 - shape / 3)) ** 0.5
        return deviation * (self.rows * self.columns) ** 0.5 / float(self.values.norm())


def gavish_donoho(rows: int, columns: int) -> float:
    """ω(β) of the optimal hard threshold ω·median(σ) for unknown noise (Gavish and Donoho 2014, eq. 5)."""
    beta = min(rows, columns) / max(rows, columns)
    return 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43


@dataclass(frozen=True)
class ImageCount:
    """clear: whether the spectrum falls to its floor behind the count; where it does not, the count is a guess."""

    count: int
    clear: bool


def read_spectrum(update: Tensor) -> ImageCount:
    """The rank of [ΔW | Δb] (out, in + 1) above the noise floor, and whether it can be trusted.

    Dead units and constant pixels give exact zeros and with them a huge false gap, so empty rows and columns are
    dropped and the spectrum is clamped at its median, the noise floor. The rank is where the largest ratio of
    neighbours lies, provided that the spectrum falls to the floor there: to within a few thresholds of Gavish and
    Donoho, or by a larger ratio than what is left to fall (many training steps leave some directions of rounding error
    above the threshold). Otherwise it is the number of singular values above that threshold.
    """
    update = update[update.abs().sum(1) > 0][:, update.abs().sum(0) > 0]
    return rank_above_noise(torch.linalg.svdvals(update), update.shape[0], update.shape[1])


def rank_above_noise(spectrum: Tensor, rows: int, columns: int) -> ImageCount:
    """`read_spectrum` from the singular values, largest first, of a matrix (rows, columns) without empty ones."""
    if min(rows, columns) < 2:
        return ImageCount(min(rows, columns), min(rows, columns) == 1)  # a zero update says nothing of the images
    floor = spectrum.median()
    threshold = gavish_donoho(rows, columns) * floor
    clamped = spectrum.clamp_min(floor.clamp_min(spectrum[0] * 1e-12))
    ratios = clamped[:-1] / clamped[1:]
    ratios[len(ratios) // 2 :] = 1
    gap = int(ratios.argmax())
    behind = clamped[gap + 1]
    if ratios[gap] > 2 and (behind <= 4 * threshold or ratios[gap] > behind / floor):
        # Adam's full-rank updates have a gap too, but a small one; images stand orders of magnitude above rounding
        return ImageCount(gap + 1, bool(ratios[gap] > CLEAR_GAP))
    # more images than half of the rank that pixels allow: the median is no floor, but rounding still is; never clear,
    # as the rank of the pixels themselves ends in the same way
    clamped = spectrum.clamp_min(spectrum[0].clamp_min(1e-300) * ROUNDING**2)
    ratios = clamped[:-1] / clamped[1:]
    ratios[: len(ratios) // 2] = 1
    gap = int(ratios.argmax())
    if ratios[gap] > CLEAR_GAP and clamped[gap + 1] < ROUNDING * clamped[0]:
        return ImageCount(gap + 1, False)
    return ImageCount(int((spectrum > threshold).sum()), False)
