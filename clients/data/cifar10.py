"""CIFAR-10 from an npz file or from the official python batches."""

from pathlib import Path
from typing import Any

import numpy as np

from attacks.interface.errors import InputError
from clients.config import DataConfig
from clients.data.arrays import ArraySplit
from clients.data.base import Dataset
from clients.data.byte_pickle import load_plain_pickle
from clients.data.files import bad_root, npz_fields, read_npz, require_root

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FIELDS = ("x_train", "y_train", "x_test", "y_test")
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
EXPECTED = f"an npz file with {', '.join(FIELDS)}, or the folder cifar-10-batches-py with data_batch_1 to 5, test_batch"


def load(config: DataConfig) -> Dataset:
    """Train and test images (3, 32, 32); the official 50,000 and 10,000 where the source has them all."""
    root = require_root(config, EXPECTED)
    if root.is_file():
        return _from_npz(root)
    folders = [root / name for name in ("cifar-10-batches-py", "cifar10/cifar-10-batches-py", ".")]
    for folder in folders:
        if all((folder / name).is_file() for name in BATCHES):
            return _from_batches(folder)
    for folder in (root, root / "cifar10"):
        # Other npz files may lie beside the images, such as lossy copies: only the wanted fields qualify one.
        files = [path for path in sorted(folder.glob("*.npz")) if set(FIELDS) <= set(npz_fields(path))]
        if len(files) > 1:
            names = ", ".join(path.name for path in files)
            raise InputError(f"data.root is {config.root!r}: {names} all qualify: let data.root name one of the files")
        if files:
            return _from_npz(files[0])
    raise bad_root(config, EXPECTED, "neither is there")


def _from_npz(path: Path) -> Dataset:
    fields = read_npz(path, FIELDS)
    train, test = (
        _split(str(path), fields[f"x_{part}"], fields[f"y_{part}"], f"x_{part}") for part in ("train", "test")
    )
    return Dataset(train, test, CLASSES)


def _from_batches(folder: Path) -> Dataset:
    parts = [_read_batch(folder / name) for name in BATCHES]
    train = ArraySplit(np.concatenate([p.pixels for p in parts[:-1]]), np.concatenate([p.labels for p in parts[:-1]]))
    return Dataset(train, parts[-1], CLASSES)


def _read_batch(path: Path) -> ArraySplit:
    """One official batch: {b"data": (N, 3072) uint8, channels first, b"labels": list of N}."""
    batch: Any = load_plain_pickle(path)
    if not isinstance(batch, dict):
        raise InputError(f"{str(path)!r} is no CIFAR-10 batch: it holds no dict")
    data, labels = (batch.get(key.encode(), batch.get(key)) for key in ("data", "labels"))
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072 or labels is None:
        raise InputError(f"{str(path)!r} is no CIFAR-10 batch: data (N, 3072) and labels are expected in it")
    return _split(str(path), data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.asarray(labels), "data")


def _split(source: str, pixels: np.ndarray, labels: np.ndarray, field: str) -> ArraySplit:
    """pixels: (N, 32, 32, 3) uint8. labels: N classes in 0..9."""
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (32, 32, 3):
        found = f"{pixels.dtype} of shape {pixels.shape}"
        raise InputError(f"{source!r}: {field} is {found}: uint8 (N, 32, 32, 3) is expected")
    if labels.dtype.kind not in "iu" or labels.size != len(pixels) or not len(pixels):
        found = f"{labels.size} labels of {labels.dtype}"
        raise InputError(f"{source!r}: {found} for {len(pixels)} images: one integer per image is expected")
    if labels.min() < 0 or labels.max() > 9:
        raise InputError(f"{source!r}: labels from {labels.min()} to {labels.max()}: 0 to 9 are expected")
    return ArraySplit(pixels.transpose(0, 3, 1, 2), labels.reshape(-1).astype(np.int64))
