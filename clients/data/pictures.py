"""Images that stay encoded (PNG, JPEG, ...) until they are asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from attacks.interface.errors import InputError
from clients.data.files import one_line, out_of_proportion

if TYPE_CHECKING:
    from PIL.Image import Image

GREY = ("1", "L", "LA", "La")
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # as Pillow calls them; PGM is one of the last
MOST_PIXELS = 2**22  # of one image: 2048 x 2048
MOST_BYTES = 2**32  # of the images that are asked for together, as floats
MOST_PACKED = 200  # times, of bytes: drawings of a few lines become a hundredth, a bomb a thousandth


@dataclass(frozen=True)
class PictureFormat:
    """What all images of a data set share. mode: "L" (one channel) or "RGB". size: (width, height) in pixels."""

    mode: str
    size: tuple[int, int]


@dataclass(frozen=True, eq=False)
class PictureSplit:
    """labels: (N,) int64. open: the i-th image, opened by Pillow. name: what errors call it. packed: the bytes that it
    is stored in, where something tells."""

    labels: np.ndarray
    open: Callable[[int], "Image"]
    name: Callable[[int], str]
    format: PictureFormat
    packed: Callable[[int], int] | None = None

    def images(self, indices: np.ndarray) -> Tensor:
        chosen, (width, height) = np.asarray(indices).tolist(), self.format.size
        channels = 1 if self.format.mode == "L" else 3
        self._check_memory(chosen, 4 * len(chosen) * height * width * channels)
        pixels = np.empty((len(indices), height, width, channels), np.uint8)
        for row, index in enumerate(chosen):
            pixels[row] = self._decode(index).reshape(height, width, channels)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().float().div_(255)

    def select(self, indices: np.ndarray) -> "PictureSplit":
        """The split of these images only, in this order, under their old names."""
        rows, packed = indices.tolist(), self.packed
        return PictureSplit(
            self.labels[indices],
            lambda index: self.open(rows[index]),
            lambda index: self.name(rows[index]),
            self.format,
            None if packed is None else lambda index: packed(rows[index]),
        )

    def _check_memory(self, chosen: list[int], size: int) -> None:
        """InputError, before it is asked for, where these images take more memory than there may be, or than pictures
        in files of their size do. size: of their floats, in bytes."""
        stored = None if self.packed is None else sum(map(self.packed, chosen))
        small_files = stored is not None and out_of_proportion(size, 4 * stored, MOST_PACKED)
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
    """The image of a file, by its content. Pillow reads dozens of formats, some of them with parsers that few people
    look at: whatever a file is called, it is offered to those of the endings that we take."""
    from PIL import Image

    return Image.open(source, formats=FORMATS)


def format_of(name: str, picture: "Image") -> PictureFormat:
    """The format that the first image of a data set sets for all of them."""
    if picture.mode not in GREY + COLOUR:
        # Pillow would clip 16-bit pixels at 255, and scores would be measured against a white image.
        raise InputError(f"image {name!r} has pixels of mode {picture.mode!r}: save it with 8 bits per channel")
    width, height = picture.size
    if width * height > MOST_PIXELS:  # known from its header, before it is decoded
        raise InputError(f"image {name!r} is {width}x{height} pixels, at most {MOST_PIXELS:,} are taken: shrink it")
    return PictureFormat("L" if picture.mode in GREY else "RGB", picture.size)


def check_size(name: str, picture: "Image", expected: PictureFormat) -> None:
    """InputError that names the image and both sizes."""
    size = format_of(name, picture).size
    if size != expected.size:
        wanted, found = ("x".join(map(str, pair)) for pair in (expected.size, size))
        raise InputError(f"image {name!r} is {found} pixels, the first image is {wanted}: resize them to one size")


@contextmanager
def read_errors(name: str) -> Iterator[None]:
    """What Pillow raises on a broken image becomes one InputError that names it. Its decoders raise anything."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"image {name!r} could not be read: {one_line(error)}") from None
