"""The 200 small pictures that ship with scikit-image, half of them faces: data for a first run, without a download."""

import importlib.util
from pathlib import Path

import numpy as np

from clients.config import DataConfig
from clients.data.arrays import ArraySplit, Dataset, holdout

NUM_TEST = 40
NUM_FACES = 100  # they come first


def load(config: DataConfig) -> Dataset:
    """160 train and 40 test images (1, 25, 25): faces and other crops of *Labeled Faces in the Wild*.

    They have no official split, so this one is fixed.
    """
    pixels = np.load(_file(), allow_pickle=False).astype(np.float32)[:, None]
    labels = (np.arange(len(pixels)) < NUM_FACES).astype(np.int64)
    train, test = (ArraySplit(pixels[part], labels[part]) for part in holdout(len(labels), NUM_TEST))
    return Dataset(train, test, ("other", "face"))


def _file() -> Path:
    """Where they lie: `skimage.data.lfw_subset` reads this one file, and takes a while to import."""
    package = importlib.util.find_spec("skimage")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "data" / "lfw_subset.npy"
