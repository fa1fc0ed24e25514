"""What keeps the readers of a run directory inside it: it may come by mail, with names of files in it."""

import os
from pathlib import Path

from attacks.interface.errors import InputError


def inside(folder: Path, path: Path) -> Path:
    """The path of a file below `folder`, as it is.

    InputError where it leaves the folder, by its name or by a link, and where something is there that is no regular
    file: /dev/zero has no end, and a pipe waits for somebody who writes.
    """
    path = below(folder, path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{str(path)!r} is no file: the run directory is damaged")
    return path


def below(folder: Path, path: Path) -> Path:
    """As `inside`, of a file or a folder."""
    try:
        leaves = ".." in path.relative_to(folder).parts
        leaves = leaves or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except ValueError:  # an absolute path, or one with a zero byte
        leaves = True
    if leaves:
        raise InputError(f"{str(path)[:300]!r} leads out of {str(folder)!r}: a run directory has to hold all its files")
    return path
