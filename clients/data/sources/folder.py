"""The user's own images in class folders: ROOT/train/CLASS/* and ROOT/test/CLASS/*, or ROOT/CLASS/*."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clients.config import DataConfig
from clients.data.arrays import holdout
from clients.data.base import Dataset
from clients.data.files import bad_root, require_root
from clients.data.pictures import PictureFormat, PictureSplit, check_size, format_of, read_errors

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
EXPECTED = "a folder with images in class folders: train/CLASS/* and test/CLASS/*, or CLASS/*"
Files = dict[str, list[Path]]


def load(config: DataConfig) -> Dataset:
    """Classes are the folder names in alphabetical order; without train and test folders the split is a fixed 80/20."""
    root = require_root(config, EXPECTED)
    train, test = _class_folders(root / "train"), _class_folders(root / "test")
    if train and test:
        return _official(config, train, test)
    classes = _class_folders(root)
    if not classes:
        only = "train" if train else "test" if test else None
        found = f"only {only} has class folders: name that folder to have it split" if only else "no class folder there"
        raise bad_root(config, EXPECTED, found)
    names = sorted(classes)
    paths, labels = _flatten(classes, names)
    images = _split(paths, labels, _shared_format(paths))
    train_indices, test_indices = holdout(len(paths))
    return Dataset(images.select(train_indices), images.select(test_indices), tuple(names))


def _official(config: DataConfig, train: Files, test: Files) -> Dataset:
    strangers = sorted(set(test) - set(train))
    if strangers:
        raise bad_root(config, EXPECTED, f"class {strangers[0]!r} is in test and not in train")
    names = sorted(train)
    (train_paths, train_labels), (test_paths, test_labels) = _flatten(train, names), _flatten(test, names)
    shared = _shared_format(train_paths + test_paths)
    return Dataset(_split(train_paths, train_labels, shared), _split(test_paths, test_labels, shared), tuple(names))


def _class_folders(folder: Path) -> Files:
    """{class: its image files, sorted}: the order of a directory differs from machine to machine."""
    if not folder.is_dir():
        return {}
    classes = {
        path.name: sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".")
    }
    return {name: files for name, files in classes.items() if files}


def _flatten(files: Files, names: list[str]) -> tuple[list[Path], np.ndarray]:
    paths = [path for name in names for path in files.get(name, [])]
    return paths, np.repeat(np.arange(len(names), dtype=np.int64), [len(files.get(name, [])) for name in names])


def _open(path: Path) -> "Image":
    from PIL import Image

    return Image.open(path)


def _shared_format(paths: list[Path]) -> PictureFormat:
    """The format of the first image, after the header of every file has been compared with it."""
    with read_errors(str(paths[0])), _open(paths[0]) as picture:
        shared = format_of(str(paths[0]), picture)
    for path in paths:
        with read_errors(str(path)), _open(path) as picture:
            check_size(str(path), picture, shared)
    return shared


def _split(paths: list[Path], labels: np.ndarray, shared: PictureFormat) -> PictureSplit:
    return PictureSplit(labels, lambda index: _open(paths[index]), lambda index: str(paths[index]), shared)
