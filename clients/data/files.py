"""Finding and opening the files that `data.root` names; every failure is one line that says what is expected there."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from attacks.interface.errors import InputError
from clients.config import DataConfig


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
    except (OSError, zipfile.BadZipFile):
        return []


def read_npz(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """The wanted arrays of an npz file. Object arrays, which are pickles, are never loaded."""
    present = npz_fields(path)
    if not present:
        raise InputError(f"{str(path)!r} is no npz file")
    missing = [field for field in required if field not in present]
    if missing:
        raise InputError(f"{str(path)!r} has no {', '.join(missing)} (it has {', '.join(present)})")
    wanted = [field for field in (*required, *optional) if field in present]
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {field: archive[field] for field in wanted}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{str(path)!r} could not be read: {one_line(error)}") from None
