"""The user's own images in class folders: ROOT/train/CLASS/* and ROOT/test/CLASS/*, or ROOT/CLASS/*."""

from pathlib import Path

import numpy as np
from torch import Tensor

from clients.config import DataConfig
from clients.data.arrays import Dataset, holdout
from clients.data.files import (
    PictureFormat,
    PictureSplit,
    bad_root,
    check_size,
    format_of,
    open_picture,
    read_errors,
    require_root,
)

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
EXPECTED = "a folder with images in class folders: train/CLASS/* and test/CLASS/*, or CLASS/*"


def load(config: DataConfig) -> Dataset:
    """Classes are the folder names in alphabetical order; without train and test folders the split is a fixed 80/20."""
    root = require_root(config, EXPECTED)
    train, test = _class_folders(root / "train"), _class_folders(root / "test")
    parts = [train, test] if train and test else [_class_folders(root)]
    names = sorted(parts[0])
    if not names:
        only = "train" if train else "test" if test else None
        found = f"only {only} has class folders: name that folder to have it split" if only else "no class folder there"
        raise bad_root(config, EXPECTED, found)
    strangers = sorted(set(parts[-1]) - set(names))
    if strangers:
        raise bad_root(config, EXPECTED, f"class {strangers[0]!r} is in test and not in train")
    files = [(path, label) for part in parts for label, name in enumerate(names) for path in part.get(name, [])]
    paths, labels = [path for path, _ in files], np.array([label for _, label in files], np.int64)
    images = _split(labels, paths)
    trained = sum(map(len, train.values()))
    cut = np.split(np.arange(len(paths)), [trained]) if len(parts) == 2 else holdout(len(paths))
    return Dataset(images.select(cut[0]), images.select(cut[1]), tuple(names))


def load_pictures(paths: list[Path]) -> Tensor:
    """Read (N, C, H, W) in [0, 1] from image files of one size, grey ones or coloured ones as the first is."""
    every = np.arange(len(paths))
    return _split(every, paths).images(every)


def _split(labels: np.ndarray, paths: list[Path]) -> PictureSplit:
    return PictureSplit(
        labels,
        lambda i: open_picture(paths[i]),
        lambda i: str(paths[i]),
        _shared_format(paths),
        lambda i: paths[i].stat().st_size,
    )


def _class_folders(folder: Path) -> dict[str, list[Path]]:
    """Return {class: its image files, sorted}: the order of a directory differs from machine to machine."""
    if not folder.is_dir():
        return {}
    classes = {
        path.name: sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".")
    }
    return {name: files for name, files in classes.items() if files}


def _shared_format(paths: list[Path]) -> PictureFormat:
    """Return the format of the first image, after the header of every file has been compared with it."""
    with read_errors(str(paths[0])), open_picture(paths[0]) as picture:
        shared = format_of(str(paths[0]), picture)
    for path in paths:
        with read_errors(str(path)), open_picture(path) as picture:
            check_size(str(path), picture, shared)
    return shared
