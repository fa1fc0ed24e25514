"""Finding and opening the files that `data.root` names; every failure is one line that says what is expected there."""

import math
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attacks.interface.errors import InputError
from clients.config import DataConfig

SMALL = 2**28  # bytes that may be unpacked of anything
MOST_PACKED = 100  # times; images become a tenth at best, a bomb a thousandth


def one_line(error: object, limit: int = 200) -> str:
    """The text of a foreign error without line breaks, and not longer than a reader wants."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def bad_root(config: DataConfig, expected: str, found: str = "") -> InputError:
    """`data.root is 'x': data 'mnist' expects there ...; found ...`"""
    value = "not given" if config.root is None else repr(config.root)
    where = "as its value" if config.root is None else "there"
    return InputError(f"data.root is {value}: data {config.name!r} expects {where} {expected}{found and '; ' + found}")


def require_root(config: DataConfig, expected: str) -> Path:
    """The path that `data.root` names, which exists."""
    if not config.root:
        raise bad_root(config, expected)
    root = Path(config.root).expanduser()
    if not root.exists():
        raise bad_root(config, expected, "there is no such file or folder")
    return root


def npz_fields(path: Path) -> list[str]:
    """The names of an npz file's arrays; [] where it is no npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except Exception:  # the reader of zip files raises whatever it stumbles over
        return []


def read_npz(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """The wanted arrays of an npz file. Object arrays, which are pickles, are never loaded."""
    present = npz_fields(path)
    if not present:
        raise InputError(f"{str(path)!r} is no npz file")
    missing = [field for field in required if field not in present]
    if missing:
        raise InputError(f"{str(path)!r} has no {', '.join(missing)} (it has {', '.join(present)})")
    try:
        return members(path, [field for field in (*required, *optional) if field in present])
    except Exception as error:  # the readers of zip, of deflate and of npy raise whatever they stumble over
        raise InputError(f"{str(path)!r} could not be read: {one_line(error)}") from None


def members(path: Path, fields: list[str], scalars: bool = False) -> dict[str, np.ndarray]:
    """These arrays of an npz file, as far as they are believed. scalars: whether single values are wanted too. The
    readers of zip, of deflate and of npy raise whatever they stumble over."""
    with zipfile.ZipFile(path) as archive:
        check_packed([archive.getinfo(f"{field}.npy") for field in fields], path.stat().st_size)
        found = {field: _member(archive, field) for field in fields}
    if not scalars and (single := [field for field, array in found.items() if not array.ndim]):
        raise ValueError(f"{single[0]} is a single value, an array is expected")
    return found


def out_of_proportion(unpacked: int, packed: int, most: int = MOST_PACKED) -> bool:
    """Whether bytes of a file would become more memory than anybody's data do. most: how many times as much."""
    return unpacked > SMALL and unpacked > most * packed


def check_packed(infos: Sequence[zipfile.ZipInfo], size: int) -> None:
    """ValueError where members of a zip file, one of them or all together, are out of proportion to what they unpack
    to. size: of the file, in which members may lie over each other."""
    members = [(info.filename, info.file_size, info.compress_size) for info in infos]
    for name, unpacked, packed in (*members, ("the file", sum(info.file_size for info in infos), size)):
        if out_of_proportion(unpacked, packed):
            raise ValueError(f"{name} would unpack {packed:,} bytes to {unpacked:,}")


def _member(archive: zipfile.ZipFile, field: str) -> np.ndarray:
    """An array of an npz file. Its size is known to be what the file says before memory is asked for it."""
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
    """One array of an npz file that the user named. called: how errors call what it holds, images of some kind."""
    present = npz_fields(path)
    if not present:
        raise InputError(f"{called} {str(path)!r} are no npz file: write one with numpy.savez(FILE, {name}=…)")
    if name not in present:
        raise InputError(f"{called} {str(path)!r} hold {', '.join(present)}, no array `{name}`")
    return read_npz(path, (name,))[name]
