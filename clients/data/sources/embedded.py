"""Pictures that come with packages fedspill needs: data for a first run, without any download.

The 8x8 digits of scikit-learn, and the 200 small pictures of scikit-image, half of them faces.
"""

import importlib.util
from pathlib import Path

import numpy as np

from clients.config import DataConfig
from clients.data.arrays import ArraySplit, Dataset, holdout

NUM_TEST_DIGITS, NUM_TEST_FACES = 360, 40
LARGEST = 16  # a pixel of a digit counts the set ones in a 4x4 block
NUM_FACES = 100  # they come first


def load_digits(config: DataConfig) -> Dataset:
    """1,437 train and 360 test images (1, 8, 8); they have no official split, so this one is fixed."""
    file = _folder("sklearn") / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float64)  # 64 pixels and the digit in each line
    pixels = (table[:, :-1].reshape(-1, 1, 8, 8) / LARGEST).astype(np.float32)
    return _split(pixels, table[:, -1].astype(np.int64), NUM_TEST_DIGITS, tuple(map(str, range(10))))


def load_faces(config: DataConfig) -> Dataset:
    """160 train and 40 test images (1, 25, 25), a fixed split: faces and other crops of *Labeled Faces in the Wild*."""
    pixels = np.load(_folder("skimage") / "data" / "lfw_subset.npy", allow_pickle=False).astype(np.float32)[:, None]
    return _split(pixels, (np.arange(len(pixels)) < NUM_FACES).astype(np.int64), NUM_TEST_FACES, ("other", "face"))


def _split(pixels: np.ndarray, labels: np.ndarray, num_test: int, classes: tuple[str, ...]) -> Dataset:
    train, test = (ArraySplit(pixels[part], labels[part]) for part in holdout(len(labels), num_test))
    return Dataset(train, test, classes)


def _folder(package: str) -> Path:
    """Return the folder of a package, whose own loader would take most of a second to import, in every worker."""
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent
