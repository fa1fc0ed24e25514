"""The 8x8 digits that ship with scikit-learn: data for a first run, without any download."""

import numpy as np

from clients.config import DataConfig
from clients.data.arrays import ArraySplit, Dataset, holdout

NUM_TEST = 360
LARGEST = 16  # the pixels are counts of 4x4 blocks, 0 to 16


def load(config: DataConfig) -> Dataset:
    """1,437 train and 360 test images (1, 8, 8); they have no official split, so this one is fixed."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images[:, None] / LARGEST).astype(np.float32)
    labels = digits.target.astype(np.int64)
    train, test = (ArraySplit(pixels[part], labels[part]) for part in holdout(len(labels), NUM_TEST))
    return Dataset(train, test, tuple(map(str, range(10))))
