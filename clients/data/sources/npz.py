"""npz files: the user's own, with x_train, y_train and, optionally, x_test, y_test and class_names; and CIFAR-10."""

from pathlib import Path

import numpy as np

from attacks.interface.errors import InputError
from clients.config import DataConfig
from clients.data.arrays import ArraySplit, Dataset, holdout, index_classes
from clients.data.files import bad_root, npz_fields, read_npz, require_root

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
    """Return pixels (N, C, H, W), checked. If axes 1 and 3 could both be the channels, 3 is."""
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise InputError(f"{source}: {field} is {pixels.dtype}: uint8 or floats in [0, 1] are expected")
    if not pixels.size:
        raise InputError(f"{source}: {field} holds no pixels: its shape is {pixels.shape}")
    if pixels.dtype.kind == "f":
        lowest, highest = float(pixels.min()), float(pixels.max())
        if not (lowest >= 0 and highest <= 1):  # written so that NaN is refused, too
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


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_FIELDS = ("x_train", "y_train", "x_test", "y_test")
HUB = "(the hub has the whole set as data.name uoft-cs/cifar10)"
CIFAR10_EXPECTED = f"an npz file with {', '.join(CIFAR10_FIELDS)} {HUB}"


def load_cifar10(config: DataConfig) -> Dataset:
    """Train and test images (3, 32, 32) of the npz file that `data.root` names, or of the only one in that folder."""
    root = require_root(config, CIFAR10_EXPECTED)
    if root.is_file():
        return _from_npz(root)
    for folder in (root, root / "cifar10"):
        # Other npz files may lie beside the images, such as lossy copies: only the wanted fields qualify one.
        files = [path for path in sorted(folder.glob("*.npz")) if set(CIFAR10_FIELDS) <= set(npz_fields(path))]
        if len(files) > 1:
            names = ", ".join(path.name for path in files)
            raise InputError(f"data.root is {config.root!r}: {names} all qualify: let data.root name one of the files")
        if files:
            return _from_npz(files[0])
    batches = [path for path in (root, *root.iterdir()) if (path / "data_batch_1").is_file()]
    found = "the official batches are pickles, which are never loaded" if batches else "there is none"
    raise bad_root(config, CIFAR10_EXPECTED, found)


def _from_npz(path: Path) -> Dataset:
    fields = read_npz(path, CIFAR10_FIELDS)
    return Dataset(_split(str(path), fields, "train"), _split(str(path), fields, "test"), CIFAR10_CLASSES)


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
