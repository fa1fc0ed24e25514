"""MNIST and Fashion-MNIST from their four official IDX files (format: yann.lecun.com/exdb/mnist)."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from attacks.interface.errors import InputError, one_line
from clients.config import DataConfig
from clients.data.arrays import ArraySplit, Dataset
from clients.data.files import bad_root, is_bomb, require_root

DIGITS = tuple(map(str, range(10)))
GARMENTS = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IMAGE_MAGIC, LABEL_MAGIC = 2051, 2049


def load_mnist(config: DataConfig) -> Dataset:
    """60,000 train and 10,000 test images (1, 28, 28) of handwritten digits."""
    return _load(config, ("mnist", "MNIST/raw", "raw", "."), DIGITS)


def load_fashion_mnist(config: DataConfig) -> Dataset:
    """60,000 train and 10,000 test images (1, 28, 28) of garments."""
    return _load(config, ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "raw", "."), GARMENTS)


def _load(config: DataConfig, folders: tuple[str, ...], class_names: tuple[str, ...]) -> Dataset:
    """Read the four files, gzipped or not, in the first of the folders below `data.root` that holds them all."""
    expected = f"a folder with {', '.join(name + '.gz' for name in FILES)}"
    root = require_root(config, expected)
    missing: list[str] = []
    for folder in folders:
        found = {name: next(filter(Path.is_file, _spellings(root / folder, name)), None) for name in FILES}
        paths = [path for path in found.values() if path is not None]
        if len(paths) == len(FILES):
            return Dataset(_split(*paths[:2]), _split(*paths[2:]), class_names)
        if paths or folder == ".":
            missing = missing or [name for name, path in found.items() if path is None]
    raise bad_root(config, expected, f"missing: {', '.join(missing)}")


def _spellings(folder: Path, name: str) -> list[Path]:
    dotted = name.replace("-idx", ".idx")  # how some archives unpack
    return [folder / spelling for spelling in (name + ".gz", name, dotted + ".gz", dotted)]


def _split(images: Path, labels: Path) -> ArraySplit:
    pixels, classes = _read(images, IMAGE_MAGIC, 3), _read(labels, LABEL_MAGIC, 1)
    if len(pixels) != len(classes):
        raise InputError(f"{str(images)!r} holds {len(pixels)} images, {str(labels)!r} {len(classes)} labels")
    if len(classes) and classes.max() > 9:
        raise InputError(f"{str(labels)!r} holds the label {classes.max()}: 0 to 9 are expected")
    return ArraySplit(pixels[:, None], classes.astype(np.int64))


def _read(path: Path, magic: int, dimensions: int) -> np.ndarray:
    """Read the uint8 array of an IDX file: a magic number and the sizes, big-endian int32, then the bytes."""
    start = 4 * (1 + dimensions)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            head = file.read(start)
            if len(head) < start or int.from_bytes(head[:4], "big") != magic:
                raise InputError(f"{str(path)!r} is no IDX file of this kind: its magic number is not {magic}")
            shape = struct.unpack(f">{dimensions}i", head[4:])
            size, sizes = math.prod(shape), "x".join(map(str, shape))
            if min(shape) < 1 or is_bomb(size, path.stat().st_size):
                raise InputError(f"{str(path)!r} holds {sizes} pixels by its header: fetch it again")
            content = file.read(size + 1)  # no more: a few bytes may unpack to gigabytes
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{str(path)!r} could not be read: {one_line(error)}") from None
    if len(content) != size:
        found = "more" if len(content) > size else f"{len(content)} bytes"
        raise InputError(f"{str(path)!r} holds {found} of data, its header says {sizes}: fetch it again")
    return np.frombuffer(content, np.uint8).reshape(shape)
