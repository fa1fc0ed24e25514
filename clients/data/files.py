"""Open the files of data sets: npz files, and pictures that stay encoded until they are needed.

Every failure is one line that says what is expected.
"""

import logging
import math
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from attacks.interface.errors import InputError, one_line
from clients.config import DataConfig

# What files of others may unpack to, asked before memory is taken: a few kilobytes can stand for terabytes.
FREE = 2**28  # bytes that anything may unpack to
RATIO = 200  # times the bytes of the file, beyond that: photographs become a tenth, drawings a hundredth
# Pictures may also be honest and too large for the memory of a client.
MOST_PIXELS = 2**22  # of one image: 2048 x 2048
MOST_BYTES = 2**32  # of images that are read together, as floats


def is_bomb(unpacked: int, packed: int) -> bool:
    """Return whether a file of `packed` bytes would take more memory than honest data of its size."""
    return unpacked > max(FREE, RATIO * packed)


def check_unpacked(unpacked: int, packed: int) -> None:
    """Raise ValueError if a file of `packed` bytes would take more memory than honest data of its size."""
    if is_bomb(unpacked, packed):
        raise ValueError(f"the file would unpack {packed:,} bytes to {unpacked:,}")


LOGGERS = ("datasets", "flwr_datasets", "huggingface_hub", "fsspec", "httpx")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars, warnings and log lines of Hugging Face and flwr-datasets inside the block."""
    import datasets  # 0.7 s, which runs on other data are spared
    from datasets.utils.tqdm import are_progress_bars_disabled

    had_bars = not are_progress_bars_disabled()
    levels = {logger: logger.level for logger in map(logging.getLogger, LOGGERS)}
    datasets.disable_progress_bars()
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        if had_bars:
            datasets.enable_progress_bars()


def bad_root(config: DataConfig, expected: str, found: str = "") -> InputError:
    """Return the error `data.root is 'x': data 'mnist' expects there ...; found ...`"""
    value = "not given" if config.root is None else repr(config.root)
    where = "as its value" if config.root is None else "there"
    return InputError(f"data.root is {value}: data {config.name!r} expects {where} {expected}{found and '; ' + found}")


def require_root(config: DataConfig, expected: str) -> Path:
    """Return the path that `data.root` names; raise InputError if it does not exist."""
    if not config.root:
        raise bad_root(config, expected)
    root = Path(config.root).expanduser()
    if not root.exists():
        raise bad_root(config, expected, "there is no such file or folder")
    return root


def npz_fields(path: Path) -> list[str]:
    """Return the names of an npz file's arrays; [] for any other file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except Exception:  # the reader of a damaged file may raise anything
        return []


def read_npz(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Read the wanted arrays of an npz file. Object arrays, which are pickles, are never loaded."""
    present = npz_fields(path)
    if not present:
        raise InputError(f"{str(path)!r} is no npz file")
    missing = [field for field in required if field not in present]
    if missing:
        raise InputError(f"{str(path)!r} has no {', '.join(missing)} (it has {', '.join(present)})")
    try:
        return members(path, [field for field in (*required, *optional) if field in present])
    except Exception as error:  # the reader of a damaged file may raise anything
        raise InputError(f"{str(path)!r} could not be read: {one_line(error)}") from None


def members(path: Path, fields: list[str], scalars: bool = False) -> dict[str, np.ndarray]:
    """Read arrays, or `scalars`, of an npz file; raise ValueError for a bomb, and anything for a damaged file."""
    with zipfile.ZipFile(path) as archive:
        check_unpacked(sum(archive.getinfo(f"{field}.npy").file_size for field in fields), path.stat().st_size)
        found = {field: _member(archive, field) for field in fields}
    if not scalars and (single := [field for field, array in found.items() if not array.ndim]):
        raise ValueError(f"{single[0]} is a single value, an array is expected")
    return found


def _member(archive: zipfile.ZipFile, field: str) -> np.ndarray:
    """Read an array of an npz file; check its size before memory is asked for it."""
    info = archive.getinfo(f"{field}.npy")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(member)
        if dtype.hasobject:
            raise ValueError(f"{field} holds objects, which are pickles: they are never loaded")
        if math.prod(shape) * dtype.itemsize > info.file_size:
            raise ValueError(f"{field} has the shape {shape} and {info.file_size:,} bytes")
    with archive.open(info) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
    if array.dtype.kind == "U" and array.size:
        signs = np.frombuffer(array.astype(array.dtype.newbyteorder("=")).tobytes(), np.uint32)
        if signs.max(initial=0) > sys.maxunicode:  # Python makes no text of it
            raise ValueError(f"{field} holds characters that there are not")
    return array


def npz_array(path: Path, name: str, called: str) -> np.ndarray:
    """Read one array of a user's npz file. called: the name of its content in errors, images of some kind."""
    present = npz_fields(path)
    if not present:
        raise InputError(f"{called} {str(path)!r}: this is no npz file; numpy.savez(FILE, {name}=…) writes one")
    if name not in present:
        raise InputError(f"{called} {str(path)!r}: it holds no array `{name}`, but {', '.join(present)}: name it so")
    return read_npz(path, (name,))[name]


if TYPE_CHECKING:
    from PIL.Image import Image

GREY = ("1", "L", "LA", "La")
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # as Pillow calls them; PGM is one of the last


@dataclass(frozen=True)
class PictureFormat:
    """The format of all images of a data set.

    mode: "L" (one channel) or "RGB".
    size: (width, height) in pixels.
    """

    mode: str
    size: tuple[int, int]


@dataclass(frozen=True, eq=False)
class PictureSplit:
    """Images that stay encoded.

    labels: (N,) int64.
    open: opens the i-th image with Pillow.
    name: returns its name for errors.
    packed: returns the bytes that it is stored in, None if unknown.
    places: (N,), the i of each; None for 0 to N − 1.
    """

    labels: np.ndarray
    open: Callable[[int], "Image"]
    name: Callable[[int], str]
    format: PictureFormat
    packed: Callable[[int], int] | None = None
    places: np.ndarray | None = None

    def images(self, indices: np.ndarray) -> Tensor:
        chosen, (width, height) = self._places_of(indices).tolist(), self.format.size
        channels = 1 if self.format.mode == "L" else 3
        self._check_memory(chosen, 4 * len(chosen) * height * width * channels)
        pixels = np.empty((len(indices), height, width, channels), np.uint8)
        for row, index in enumerate(chosen):
            pixels[row] = self._decode(index).reshape(height, width, channels)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float().div_(255)

    def select(self, indices: np.ndarray) -> "PictureSplit":
        """Return the split of these images only, in this order, under their old names."""
        return replace(self, labels=self.labels[indices], places=self._places_of(indices))

    def _places_of(self, indices: np.ndarray) -> np.ndarray:
        return indices if self.places is None else self.places[indices]

    def _check_memory(self, chosen: list[int], size: int) -> None:
        """Raise InputError if images take too much memory, or far too much for their files. size: in bytes."""
        stored = None if self.packed is None else sum(map(self.packed, chosen))
        small_files = stored is not None and is_bomb(size // 4, stored)
        if size > MOST_BYTES or small_files:
            wanted = (
                f"{len(chosen)} images of {'x'.join(map(str, self.format.size))} pixels take {size / 2**30:.1f} GiB"
            )
            wanted += f" and are stored in {stored:,} bytes, as no photographs are" if small_files else ""
            raise InputError(f"{wanted}: shrink them, or lower partition.images, data.public and data.test")

    def _decode(self, index: int) -> np.ndarray:
        with read_errors(self.name(index)):
            picture = self.open(index)
            check_size(self.name(index), picture, self.format)
            return np.asarray(picture.convert(self.format.mode))


def open_picture(source: Path | BinaryIO) -> "Image":
    """Open an image by its content, with the parsers of our formats only: some of Pillow's dozens are little tested."""
    from PIL import Image

    return Image.open(source, formats=FORMATS)


def format_of(name: str, picture: "Image") -> PictureFormat:
    """Return the format of an image, as the first one sets it for a data set; raise InputError if it is not usable."""
    if picture.mode not in GREY + COLOUR:
        # Pillow would clip 16-bit pixels at 255, and scores would be measured against a white image.
        raise InputError(f"image {name!r} has pixels of mode {picture.mode!r}: save it with 8 bits per channel")
    width, height = picture.size
    if width * height > MOST_PIXELS:  # known from its header, before it is decoded
        raise InputError(f"image {name!r} is {width}x{height} pixels, at most {MOST_PIXELS:,} are taken: shrink it")
    return PictureFormat("L" if picture.mode in GREY else "RGB", picture.size)


def check_size(name: str, picture: "Image", expected: PictureFormat) -> None:
    """Raise InputError with both sizes if the image has another one."""
    size = format_of(name, picture).size
    if size != expected.size:
        wanted, found = ("x".join(map(str, pair)) for pair in (expected.size, size))
        raise InputError(f"image {name!r} is {found} pixels, the first image is {wanted}: resize them to one size")


@contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Turn any exception of Pillow's decoders into one InputError that names the image."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"image {name!r} could not be read: {one_line(error)}") from None
