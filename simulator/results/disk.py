"""What keeps the readers of a run directory inside it: it may come by mail, with names of files in it.

Who may write into a folder: one at a time.

The one door through which files of a run are written: a file is there as a whole or not at all, its checksum is
known, and a disk that does not take it is one line.
"""

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from attacks.interface.errors import InputError
from simulator.errors import NO_PATH, DiskError, RunError, one_line


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


LOCK = ".lock"


def acquired(folder: Path, occupied: str) -> BaseFileLock:
    """The lock of a folder, held until it is released, or this process ends. RunError, which says `occupied`, where
    another one holds it."""
    lock = FileLock(folder / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunError(occupied) from None
    return lock


def is_occupied(folder: Path) -> bool:
    """Whether somebody holds the lock of a folder, who may be a part of this process. Writes nothing."""
    if (folder / LOCK).exists():
        try:
            acquired(folder, "").release()
        except RunError:
            return True
        except OSError:  # whoever writes there says why that is impossible
            return False
    return False


BLOCK = 2**22  # bytes that are read at a time
LARGE = 2**20  # bytes of a file that is worth dropping from the page cache


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system says against writing `path` becomes one DiskError: a full disk, a folder that is read-only or
    gone."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or one_line(str(error))
        raise DiskError(
            f"{str(path)!r} cannot be written ({reason}): what was written before is kept; make room, or have the "
            "folder back and writable, and give the same command again"
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what `path` is to hold: a reader finds the old file or the new one, never half of one.

    Raises DiskError, and then leaves nothing of the new one.
    """
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        try:
            partial.unlink(missing_ok=True)  # a link would be followed, to wherever it leads
            yield partial
            os.replace(partial, path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> str:
    """As `replacing` does it. Returns the checksum of the content."""
    with replacing(path) as partial:
        partial.write_bytes(content)
    return checksum(content)


def drop_from_page_cache(path: Path) -> None:
    """Flush a large file to the disk and drop it from the page cache, so that the next write finds free pages. Raise
    OSError if the disk does not take it."""
    if path.stat().st_size < LARGE:
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # Linux
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_atomically(path: Path, text: str) -> str:
    """`write_bytes` of a text, in UTF-8."""
    return write_bytes(path, text.encode())


def checksum(content: bytes) -> str:
    """CRC-32, eight hexadecimal digits: against accidents, not against an enemy, who would write a fitting one."""
    return f"{zlib.crc32(content):08x}"


def checksum_of(path: Path) -> str:
    """That of a file's content, which need not fit into memory."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def contents_digest(path: Path) -> str:
    """SHA-256 of what a file holds, whatever its size: it is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_changed(path: Path, expected: str) -> bool:
    """Whether a file is another than the one with this checksum: cut off, or changed. One that is gone is not: people
    delete checkpoints when they have seen their tables."""
    try:
        return checksum_of(path) != expected
    except FileNotFoundError:
        return False
    except OSError:
        return True


def check_out(path: Path) -> None:
    """Raise InputError where no folder can be at `path`. Nothing is made: what follows may still find bad input."""
    if wrong := _no_place(path):
        raise InputError(f"{str(path)[:100]!r} is no path ({wrong}): choose another --out")
    there = next(part for part in (path.absolute(), *path.absolute().parents) if os.path.lexists(part))
    if not there.is_dir():
        raise InputError(f"{str(there)!r} is a file: choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{str(there)!r} cannot be written: choose another --out")


def _no_place(path: Path) -> str:
    """Why nothing can be at `path`, whatever it is; empty where something can."""
    try:
        os.lstat(path)
    except ValueError as error:  # a zero byte
        return str(error)
    except OSError as error:
        return (error.strerror or "") if error.errno in NO_PATH else ""
    return ""


def make_out(path: Path) -> None:
    """The folder, where it is not there yet; InputError where that does not work."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {str(path)!r} cannot be made ({error.strerror}): choose another --out") from None
