"""What every source of images returns, images that lie in memory, and the split of what comes without one."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.seeding import numpy_generator


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


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """pixels: (N, C, H, W), uint8 or floats in [0, 1]. labels: (N,) int64.

    Only the selected images become float32: all of MNIST would take four times its memory in every Ray worker.
    """

    pixels: np.ndarray
    labels: np.ndarray

    def images(self, indices: np.ndarray) -> Tensor:
        images = torch.from_numpy(np.ascontiguousarray(self.pixels[indices], np.float32))
        return images / 255 if self.pixels.dtype == np.uint8 else images


def holdout(count: int, num_test: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Indices (train, test) of a fixed random split, always the same for the same count; default 80/20.

    It does not depend on the scenario's seed: the test images of a data set stay its test images.
    """
    num_test = max(1, count // 5) if num_test is None else num_test
    if count <= num_test:
        raise InputError(f"{count} images are too few to hold out {num_test} for testing: provide more, or a test set")
    order = numpy_generator(0, "holdout").permutation(count)
    return order[:-num_test], order[-num_test:]


def index_classes(source: str, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Labels of any kind -> (train (N,), test (M,)) int64 indices into the sorted classes of train, and their names.

    source: names the data in errors. Raises InputError for labels that are no integers or strings, and for a class
    that only the test images have.
    """
    for part, labels in (("train", train), ("test", test)):
        if labels.ndim != 1 or labels.dtype.kind not in "biuUS":
            found = f"{labels.dtype} of shape {labels.shape}"
            raise InputError(f"{source}: {part} labels are {found}: one integer or string per image is expected")
    values, train_indices = np.unique(train, return_inverse=True)
    strangers = np.setdiff1d(test, values)
    if len(strangers):
        raise InputError(f"{source}: class {str(strangers[0])!r} has test images and no training images")
    names = tuple(value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist())
    return train_indices.astype(np.int64), np.searchsorted(values, test).astype(np.int64), names
