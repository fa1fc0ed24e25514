"""What every source of images looks like."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor


class Split(Protocol):
    """Labelled images that are decoded only when asked for."""

    @property
    def labels(self) -> np.ndarray:
        """(N,) int64 class indices."""

    def images(self, indices: np.ndarray) -> Tensor:
        """(n, C, H, W) float32 in [0, 1], in the order of `indices`."""


@dataclass(frozen=True)
class Dataset:
    """A data set as its source provides it: official train and test splits and the names of its classes."""

    train: Split
    test: Split
    class_names: tuple[str, ...]
