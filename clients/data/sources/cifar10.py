"""CIFAR-10 from an npz file."""

from pathlib import Path

import numpy as np

from attacks.interface.errors import InputError
from clients.config import DataConfig
from clients.data.arrays import ArraySplit, Dataset
from clients.data.files import bad_root, npz_fields, read_npz, require_root

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FIELDS = ("x_train", "y_train", "x_test", "y_test")
EXPECTED = f"an npz file with {', '.join(FIELDS)} (the hub has the whole set as data.name uoft-cs/cifar10)"


def load(config: DataConfig) -> Dataset:
    """Train and test images (3, 32, 32) of the npz file that `data.root` names, or of the only one in that folder."""
    root = require_root(config, EXPECTED)
    if root.is_file():
        return _from_npz(root)
    for folder in (root, root / "cifar10"):
        # Other npz files may lie beside the images, such as lossy copies: only the wanted fields qualify one.
        files = [path for path in sorted(folder.glob("*.npz")) if set(FIELDS) <= set(npz_fields(path))]
        if len(files) > 1:
            names = ", ".join(path.name for path in files)
            raise InputError(f"data.root is {config.root!r}: {names} all qualify: let data.root name one of the files")
        if files:
            return _from_npz(files[0])
    batches = [path for path in (root, *root.iterdir()) if (path / "data_batch_1").is_file()]
    found = "the official batches are pickles, which are never loaded" if batches else "there is none"
    raise bad_root(config, EXPECTED, found)


def _from_npz(path: Path) -> Dataset:
    fields = read_npz(path, FIELDS)
    return Dataset(_split(str(path), fields, "train"), _split(str(path), fields, "test"), CLASSES)


def _split(source: str, fields: dict[str, np.ndarray], part: str) -> ArraySplit:
    """Make a split of the fields x_`part`, (N, 32, 32, 3) uint8, and y_`part`, N classes in 0..9."""
    field, pixels, labels = f"x_{part}", fields[f"x_{part}"], fields[f"y_{part}"]
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (32, 32, 3):
        found = f"{pixels.dtype} of shape {pixels.shape}"
        raise InputError(f"{source!r}: {field} is {found}: uint8 (N, 32, 32, 3) is expected")
    if labels.dtype.kind not in "iu" or labels.size != len(pixels) or not len(pixels):
        found = f"{labels.size} labels of {labels.dtype}"
        raise InputError(f"{source!r}: {found} for {len(pixels)} images: one integer per image is expected")
    if labels.min() < 0 or labels.max() > 9:
        raise InputError(f"{source!r}: labels from {labels.min()} to {labels.max()}: 0 to 9 are expected")
    return ArraySplit(pixels.transpose(0, 3, 1, 2), labels.reshape(-1).astype(np.int64))
