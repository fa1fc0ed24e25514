"""The user's own npz file: x_train, y_train and, optionally, x_test, y_test and class_names."""

from pathlib import Path

import numpy as np

from attacks.interface.errors import InputError
from clients.config import DataConfig
from clients.data.arrays import ArraySplit, Dataset, holdout, index_classes
from clients.data.files import bad_root, read_npz, require_root

EXPECTED = "an npz file with x_train and y_train, and optionally x_test and y_test"


def load(config: DataConfig) -> Dataset:
    """Images (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or floats in [0, 1]; labels are integers or strings.

    Classes are the distinct labels, sorted. Without x_test the split is a fixed 80/20.
    """
    root = require_root(config, EXPECTED)
    if not root.is_file():
        raise bad_root(config, EXPECTED, "this is a folder")
    fields = read_npz(root, ("x_train", "y_train"), ("x_test", "y_test", "class_names"))
    if ("x_test" in fields) != ("y_test" in fields):
        raise InputError(f"{str(root)!r} has one of x_test and y_test: provide both or neither")
    source = f"data.root {config.root!r}"
    pixels, labels = _part(source, fields, "train")
    given = "x_test" in fields
    test_pixels, test_labels = _part(source, fields, "test") if given else (pixels[:0], labels[:0])
    if pixels.shape[1:] != test_pixels.shape[1:]:
        raise InputError(f"{source}: images are {pixels.shape[1:]} in x_train, {test_pixels.shape[1:]} in x_test")
    indices, test_indices, names = index_classes(source, labels, test_labels)
    train, test = ArraySplit(pixels, indices), ArraySplit(test_pixels, test_indices)
    if not given:
        train, test = (ArraySplit(pixels[part], indices[part]) for part in holdout(len(pixels)))
    return Dataset(train, test, _own_names(root, fields, labels, names))


def _part(source: str, fields: dict[str, np.ndarray], part: str) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = _channels_first(source, f"x_{part}", fields[f"x_{part}"]), fields[f"y_{part}"]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if len(pixels) != len(labels):
        raise InputError(f"{source}: x_{part} holds {len(pixels)} images, y_{part} {len(labels)} labels")
    return pixels, labels


def _channels_first(source: str, field: str, pixels: np.ndarray) -> np.ndarray:
    """Return (N, C, H, W), checked. If both ends could be the channels, they are the last axis."""
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise InputError(f"{source}: {field} is {pixels.dtype}: uint8 or floats in [0, 1] are expected")
    if not pixels.size:
        raise InputError(f"{source}: {field} holds no pixels: its shape is {pixels.shape}")
    if pixels.dtype.kind == "f":
        lowest, highest = float(pixels.min()), float(pixels.max())
        if not (lowest >= 0 and highest <= 1):  # in this form it is also true of NaN
            raise InputError(f"{source}: {field} lies in [{lowest:g}, {highest:g}]: scale its floats to [0, 1]")
    if pixels.ndim == 3:
        return pixels[:, None]
    if pixels.ndim == 4 and pixels.shape[3] in (1, 3):
        return pixels.transpose(0, 3, 1, 2)
    if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
        return pixels
    wanted = "(N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels"
    raise InputError(f"{source}: {field} has shape {pixels.shape}: {wanted} is expected")


def _own_names(
    path: Path, fields: dict[str, np.ndarray], labels: np.ndarray, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the file's class_names, if its labels are indices into them."""
    if "class_names" not in fields or labels.dtype.kind not in "iu":
        return names
    own = [str(name) for name in fields["class_names"].tolist()]
    if min(map(int, names)) < 0 or max(map(int, names)) >= len(own):
        raise InputError(f"{str(path)!r}: labels from {names[0]} to {names[-1]}, and {len(own)} class_names")
    return tuple(own[int(name)] for name in names)
