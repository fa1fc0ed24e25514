"""The 8x8 digits that ship with scikit-learn: data for a first run, without any download."""

import importlib.util
from pathlib import Path

import numpy as np

from clients.config import DataConfig
from clients.data.arrays import ArraySplit, Dataset, holdout

NUM_TEST = 360
LARGEST = 16  # the pixels are counts of 4x4 blocks, 0 to 16


def load(config: DataConfig) -> Dataset:
    """1,437 train and 360 test images (1, 8, 8); they have no official split, so this one is fixed."""
    table = np.loadtxt(_table(), delimiter=",", dtype=np.float64)  # 64 pixels and the digit in each line
    pixels = (table[:, :-1].reshape(-1, 1, 8, 8) / LARGEST).astype(np.float32)
    labels = table[:, -1].astype(np.int64)
    train, test = (ArraySplit(pixels[part], labels[part]) for part in holdout(len(labels), NUM_TEST))
    return Dataset(train, test, tuple(map(str, range(10))))


def _table() -> Path:
    """Where it lies. Its own loader takes most of a second to import, in every worker, and reads this one file."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
