"""Tiny-ImageNet as npz files of JPEG bytes.

Fields: jpeg (bytes of all images in a row), offset (N + 1,), y (N,) index into wnids, name (N,), wnids and class_names.
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attacks.interface.errors import InputError
from clients.config import DataConfig
from clients.data.arrays import Dataset
from clients.data.files import PictureFormat, PictureSplit, bad_root, open_picture, read_npz, require_root

if TYPE_CHECKING:
    from PIL.Image import Image

FIELDS = ("jpeg", "offset", "y", "name", "wnids", "class_names")
EXPECTED = "a folder with one val_*.npz of JPEG bytes and, unless that one serves for both, one train_*.npz"
TRAINED = 0.8  # of each class, where the validation images are all there is
FORMAT = PictureFormat("RGB", (64, 64))


def load(config: DataConfig) -> Dataset:
    """Train images (3, 64, 64) of train_*.npz; test images are those of val_*.npz in the same classes. Without a
    train_*.npz the first four fifths of every class in val_*.npz are trained on: 200 classes in one small file."""
    root = require_root(config, EXPECTED)
    folder = root if any(root.glob("*_*.npz")) else root / "tiny_imagenet"
    test = _read(_only(config, folder, "val"))
    train = _read(_only(config, folder, "train")) if any(folder.glob("train_*.npz")) else test
    present = np.unique(train["y"])
    wnids = train["wnids"][present]
    names = [str(name) for name in train["class_names"][present]]
    short = [name.split(",")[0] for name in names]
    # 'goldfish' instead of 'goldfish, Carassius auratus', unless two classes would get the same name.
    class_names = tuple(short if len(set(short)) == len(short) else names)
    if train is test:
        return Dataset(*_cut(_split(test, wnids)), class_names)
    return Dataset(_split(train, wnids), _split(test, wnids), class_names)


def _cut(split: PictureSplit) -> tuple[PictureSplit, PictureSplit]:
    """Return the first four fifths of every class, and the rest."""
    rank = np.zeros(len(split.labels), np.int64)
    for label, count in enumerate(np.bincount(split.labels)):
        rank[split.labels == label] = np.arange(count)
    early = rank < TRAINED * np.bincount(split.labels)[split.labels]
    return split.select(np.flatnonzero(early)), split.select(np.flatnonzero(~early))


def _only(config: DataConfig, folder: Path, part: str) -> Path:
    found = sorted(folder.glob(f"{part}_*.npz"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise bad_root(config, EXPECTED, f"found for {part}: {names}")
    return found[0]


def _read(path: Path) -> dict[str, np.ndarray]:
    fields = read_npz(path, FIELDS)
    offset, labels = fields["offset"], fields["y"]
    if len(offset) != len(labels) + 1 or offset[0] != 0 or offset[-1] != len(fields["jpeg"]):
        raise InputError(f"{str(path)!r}: offset does not cut {len(fields['jpeg'])} bytes into {len(labels)} images")
    if labels.min() < 0 or labels.max() >= len(fields["wnids"]):
        raise InputError(f"{str(path)!r}: y holds {labels.max()}, there are {len(fields['wnids'])} wnids")
    return fields


def _split(fields: dict[str, np.ndarray], wnids: np.ndarray) -> PictureSplit:
    """Read the images of the classes `wnids`, labelled by their position there."""
    position = {wnid: index for index, wnid in enumerate(wnids.tolist())}
    classes = np.array([position.get(wnid, -1) for wnid in fields["wnids"].tolist()], np.int64)
    jpeg, offset, names = fields["jpeg"], fields["offset"], fields["name"]

    def open_image(index: int) -> "Image":
        return open_picture(io.BytesIO(jpeg[offset[index] : offset[index + 1]].tobytes()))

    everything = PictureSplit(
        *(classes[fields["y"]], open_image, lambda index: str(names[index]), FORMAT),
        packed=lambda index: int(offset[index + 1]) - int(offset[index]),
    )
    return everything.select(np.flatnonzero(everything.labels >= 0))
