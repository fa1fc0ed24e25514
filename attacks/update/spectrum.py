"""The singular values and the row space of a layer's update."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.update.inference import gavish_donoho, rank_above_noise


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
