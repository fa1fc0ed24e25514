"""Read the images of an audit: the truth, one file for each client or all in one, and public ones."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attacks import InputError
from attacks.scoring.images import numbers_of
from clients.data.files import npz_array, npz_fields
from clients.data.sources.folder import ENDINGS, load_pictures

Shape = tuple[int, int, int]
COLOURS = {1: "in grey", 3: "in colour"}  # by the number of channels


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images (N, C, H, W) in [0, 1] of one or more files.

    names: of the files.
    counts: images of each, in order.
    by_client: whether each file belongs to one client.
    labels: (N,), the classes, None if some file has none.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    images: Tensor
    by_client: bool
    labels: Tensor | None = None

    def numbers(self, file: int) -> range:
        """Return the numbers of a file's images among all."""
        start = sum(self.counts[:file])
        return range(start, start + self.counts[file])


def no_members(public: Tensor, insiders: Tensor, called: str) -> tuple[Tensor, str]:
    """Return (the public images (P,) that stand for images of no members, a line on the others; "" for none). Of equal
    images one counts, as the others tell nothing more; none counts that is among `insiders`, whose name is `called`."""
    numbers = numbers_of(insiders, public)
    others = numbers[len(insiders) :]
    both = np.isin(others, numbers[: len(insiders)])
    first = np.zeros(len(others), bool)
    first[np.unique(others, return_index=True)[1]] = True
    copies = int((~both & ~first).sum())
    why = [f"{both.sum()} among {called}"] if both.any() else []
    why += [f"{copies} copies"] if copies else []
    line = f"{both.sum() + copies} of {len(public)} public images are left out: {' and '.join(why)}" if why else ""
    return torch.from_numpy(~both & first), line


def read_truth(path: Path, shape: Shape, called: str = "truth", in_pixels: bool = True) -> ImageFiles:
    """Read the private images: from a folder with a file or folder for each client (`client_00.npz`, …), or from one
    npz file or folder of pictures for all of them. called: its name in errors. in_pixels: as of `read_images`. Raise
    InputError for what is missing or does not fit the shape."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stamps = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()]
    return _read_truth(str(path), shape, called, in_pixels, tuple(stamps))


@lru_cache(maxsize=4)  # a worker scores many rows
def _read_truth(
    path: str, shape: Shape, called: str, in_pixels: bool, stamps: tuple[tuple[str, int, int], ...]
) -> ImageFiles:
    """stamps: name, time and size of every file, which change if somebody replaces one."""
    there = sorted(Path(path).iterdir()) if Path(path).is_dir() else []
    own = [file for file in there if not file.name.startswith(".") and (file.is_dir() or file.suffix == ".npz")]
    files = own or [Path(path)]  # one npz file, or a folder of pictures
    parts = [read_images(file, shape, called, in_pixels) for file in files]
    labels = [read_labels(file, len(images)) for file, images in zip(files, parts, strict=True)]
    known = [one for one in labels if one is not None]
    return ImageFiles(
        names=tuple(file.stem for file in files),
        counts=tuple(map(len, parts)),
        images=torch.cat(parts),
        by_client=bool(own),
        labels=torch.cat(known) if len(known) == len(labels) else None,
    )


def read_images(path: Path, shape: Shape, called: str, in_pixels: bool = True) -> Tensor:
    """Read (N, C, H, W) in [0, 1] from the array `images` of an npz file (floats in [0, 1], or uint8) or from a folder
    of pictures. called: their name in errors. in_pixels: False if floats may be on any scale, as in a model's input
    space. Raise InputError if they do not fit `shape`, (C, H, W)."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
        if not files:
            raise InputError(f"{called} {str(path)!r} holds no pictures ({', '.join(ENDINGS)}) and no npz files")
        images = load_pictures(files)
    else:
        images = _npz_images(path, called, in_pixels)
    return _of_shape(images, shape, f"{called} {str(path)!r}")


def _of_shape(images: Tensor, shape: Shape, called: str) -> Tensor:
    """Return images (N, C, H, W) of a shape: of grey ones in three equal channels, as many a JPEG has them, one. Raise
    InputError, with a remedy, for others."""
    given = tuple(images.shape[1:])
    if given == shape:
        return images
    if given[0] == 3 and shape == (1, *given[1:]) and bool((images == images[:, :1]).all()):
        return images[:, :1]
    if given == (*shape[1:], shape[0]):
        remedy = "give images.transpose(0, 3, 1, 2)"
    elif given[1:] == shape[1:] and shape[0] in COLOURS:
        remedy = f"save them {COLOURS[shape[0]]}, as training converts them"
    else:
        remedy = "give them as training resizes or converts them"
    raise InputError(f"{called}: images have shape {given}, the network takes {shape}: {remedy}")


def read_labels(path: Path, count: int) -> Tensor | None:
    """Read `labels` (N,), integers, of an npz file of `count` images; None if it has none. Raise InputError if they are
    no integers, or not `count`."""
    if path.is_dir() or "labels" not in npz_fields(path):
        return None
    labels = npz_array(path, "labels", "labels")
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise InputError(
            f"labels of {str(path)!r} are {labels.dtype} {labels.shape}: give an integer for each of {count} images"
        )
    return torch.from_numpy(labels.astype(np.int64))


def _npz_images(path: Path, called: str, in_pixels: bool) -> Tensor:
    remedy = f"give an npz file, by numpy.savez(FILE, images=…), or a folder of pictures ({', '.join(ENDINGS)})"
    if not path.exists():
        raise InputError(f"{called} {str(path)!r} does not exist: {remedy}")
    if not npz_fields(path):
        raise InputError(f"{called} {str(path)!r}: {remedy}")
    pixels = npz_array(path, "images", called)
    if pixels.ndim != 4 or not len(pixels) or (pixels.dtype != np.uint8 and pixels.dtype.kind != "f"):
        raise InputError(
            f"{called} {str(path)!r}: `images` is {pixels.dtype} {pixels.shape}; it has to be uint8, or floats in "
            "[0, 1], of shape (number, channels, height, width)"
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels, np.float32))
    if pixels.dtype == np.uint8:
        return images / 255
    if not in_pixels:
        if not torch.isfinite(images).all():
            raise InputError(f"{called} {str(path)!r}: `images` holds values that are not finite")
        return images
    lowest, highest = float(images.min()), float(images.max())
    if not (lowest >= -1e-4 and highest <= 1 + 1e-4):  # NaN fails this comparison too
        raise InputError(
            f"{called} {str(path)!r}: `images` lies in [{lowest:.3g}, {highest:.3g}]: give pixels in [0, 1], as they "
            "are before --mean and --std"
        )
    return images.clamp(0, 1)
