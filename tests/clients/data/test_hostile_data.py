"""Files that unpack to gigabytes, or say that they do: refused before memory is asked for it."""

import gzip
import io
import struct
import zipfile
import zlib

import numpy as np
import pytest

from attacks.interface.errors import InputError
from clients.data.files import PictureFormat, PictureSplit, format_of, open_picture, read_errors, read_npz
from clients.data.sources.idx import IMAGE_MAGIC, _read

GIBIBYTE = 2**30


def npy(shape, body=b"", descr="|u1"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + body


def write_npz(path, head, zeros=0):
    """An array x of which the body is so many zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        member.write(head)
        for _ in range(zeros // 2**20):
            member.write(bytes(2**20))
    return path


@pytest.mark.parametrize(
    ("shape", "descr", "zeros", "reason"),
    [
        ((300 * 2**20,), "|u1", 300 * 2**20, "would unpack 30"),
        ((8 * GIBIBYTE,), "|u1", 0, r"x has the shape \(8589934592,\) and 128 bytes"),
        ((10**20,), "|u1", 0, r"x has the shape \(100000000000000000000,\)"),
        ((), "<f4", 2**20, "x is a single value, an array is expected"),
        ((2,), "|O", 2**20, "x holds objects"),
    ],
)
def test_an_npz_file_is_as_large_as_it_says(tmp_path, shape, descr, zeros, reason):
    path = write_npz(tmp_path / "x.npz", npy(shape, descr=descr), zeros)
    assert path.stat().st_size < 2**20
    with pytest.raises(InputError, match=reason):
        read_npz(path, ("x",))


def test_a_broken_npz_file_is_one_line(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.arange(1000))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(whole[: rng.integers(1, len(whole) + 1)])
        broken[rng.integers(len(broken))] = rng.integers(256)
        path.write_bytes(broken)
        try:
            assert len(read_npz(path, ("x",))["x"]) == 1000
        except InputError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("sizes", [(60_000, 28, 28), (2**31 - 1, 28, 28), (-1, 28, 28)])
def test_an_idx_file_is_as_large_as_it_says(tmp_path, sizes):
    path = tmp_path / "images.gz"
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">iiii", IMAGE_MAGIC, *sizes))
        for _ in range(64):
            file.write(bytes(2**20))
    with pytest.raises(InputError, match="fetch it again"):
        _read(path, IMAGE_MAGIC, 3)


def png(width, height):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def test_a_picture_of_too_many_pixels_is_not_decoded():
    from PIL import Image

    with pytest.raises(InputError, match=r"'bomb.png' is 13000x13000 pixels, at most 4,194,304"), read_errors("bomb"):
        format_of("bomb.png", Image.open(io.BytesIO(png(13_000, 13_000))))
    split = PictureSplit(np.zeros(10**6, np.int64), lambda i: None, str, PictureFormat("RGB", (1024, 1024)))
    with pytest.raises(InputError, match="1000000 images of 1024x1024 pixels take 11718"):
        split.images(np.arange(10**6))


@pytest.mark.parametrize(("count", "width", "stored"), [(3, 2048, 12_000), (1000, 224, 5_000), (50_000, 28, 250)])
def test_pictures_that_people_have_are_no_bomb(count, width, stored):
    pictures_of(count, width, stored)._check_memory(list(range(count)), 4 * count * width**2)


def test_pictures_that_take_gigabytes_from_files_of_a_megabyte():
    split = pictures_of(80, 2048, 12_000).select(np.arange(80))
    with pytest.raises(InputError, match=r"80 images of 2048x2048 pixels take 1.2 GiB and are stored in 960,000 bytes"):
        split.images(np.arange(80))


def pictures_of(count, width, stored):
    labels = np.zeros(count, np.int64)
    return PictureSplit(labels, lambda i: None, str, PictureFormat("L", (width, width)), lambda i: stored)


def test_a_format_that_is_not_ours_is_not_decoded_whatever_its_name(tmp_path):
    from PIL import Image

    Image.new("L", (8, 8)).save(tmp_path / "a.png", "ICO")
    assert Image.open(tmp_path / "a.png").format == "ICO"  # Pillow would take it
    with pytest.raises(InputError, match=r"image 'a' could not be read: cannot identify"), read_errors("a"):
        open_picture(tmp_path / "a.png")


def test_whatever_a_decoder_raises_is_one_line():
    from PIL import Image

    for broken in (b"P6\n8 \x7f\n255\n", b"P6\n99999999999 9\n255\n", png(8, 8)[:40], b"GIF89a", b""):
        with pytest.raises(InputError, match="image 'a' could not be read"), read_errors("a"):
            Image.open(io.BytesIO(broken)).convert("L")
