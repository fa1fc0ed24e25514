"""Tiny-ImageNet as npz files of JPEG bytes.

Fields: jpeg (bytes of all images in a row), offset (N + 1,), y (N,) index into wnids, name (N,), wnids and class_names.
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attacks.errors import InputError
from clients.config import DataConfig
from clients.data.base import Dataset
from clients.data.files import bad_root, read_npz, require_root
from clients.data.pictures import PictureFormat, PictureSplit

if TYPE_CHECKING:
    from PIL.Image import Image

FIELDS = ("jpeg", "offset", "y", "name", "wnids", "class_names")
EXPECTED = "a folder with one train_*.npz and one val_*.npz of JPEG bytes"
FORMAT = PictureFormat("RGB", (64, 64))


def load(config: DataConfig) -> Dataset:
    """Train images (3, 64, 64) of train_*.npz; test images are those of val_*.npz in the same classes."""
    root = require_root(config, EXPECTED)
    folder = root if any(root.glob("train_*.npz")) else root / "tiny_imagenet"
    train, test = (_read(_only(config, folder, part)) for part in ("train", "val"))
    present = np.unique(train["y"])
    wnids = train["wnids"][present]
    names = [str(name) for name in train["class_names"][present]]
    short = [name.split(",")[0] for name in names]
    # 'goldfish' instead of 'goldfish, Carassius auratus', unless two classes would get the same name.
    class_names = tuple(short if len(set(short)) == len(short) else names)
    return Dataset(_split(train, wnids), _split(test, wnids), class_names)


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
    """The images of the classes `wnids`, labelled by their position there."""
    position = {wnid: index for index, wnid in enumerate(wnids.tolist())}
    classes = np.array([position.get(wnid, -1) for wnid in fields["wnids"].tolist()], np.int64)
    jpeg, offset, names = fields["jpeg"], fields["offset"], fields["name"]

    def open_image(index: int) -> "Image":
        from PIL import Image

        return Image.open(io.BytesIO(jpeg[offset[index] : offset[index + 1]].tobytes()))

    everything = PictureSplit(classes[fields["y"]], open_image, lambda index: str(names[index]), FORMAT)
    return everything.select(np.flatnonzero(everything.labels >= 0))
