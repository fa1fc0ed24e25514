"""Read and write the files of a run directory safely.

Readers stay inside the directory: it may come by mail and name files elsewhere. One process writes at a time. A file
is there as a whole or not at all, its checksum is known, and if the disk refuses it, the error is one line.
"""

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from attacks.interface.errors import InputError, one_line
from simulator.run_errors import DiskError, RunError


def inside(folder: Path, path: Path) -> Path:
    """Check that `path` is a file inside `folder`, or nothing yet, and return it.

    Raise InputError if it leaves the folder, by its name or by a link, or if it is no regular file: /dev/zero has no
    end, and a pipe waits for somebody who writes.
    """
    path = below(folder, path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{str(path)!r} is no file: the run directory is damaged")
    return path


def below(folder: Path, path: Path) -> Path:
    """Check that `path` lies inside `folder`, whatever it is, and return it. Raise InputError if it does not."""
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
    """Acquire the lock of a folder and return it. Raise RunError(`occupied`) if another process holds it."""
    lock = FileLock(folder / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunError(occupied) from None
    return lock


def is_occupied(folder: Path) -> bool:
    """Return whether somebody holds the lock of a folder, this process included. Write nothing."""
    if (folder / LOCK).exists():
        try:
            acquired(folder, "").release()
        except RunError:
            return True
        except OSError:  # the folder cannot be written: whoever tries to says why
            return False
    return False


BLOCK = 2**22  # bytes that are read at a time
LARGE = 2**20  # bytes of a file that is worth dropping from the page cache


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside, as of a full disk or a read-only folder, into a DiskError of one line about `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise DiskError(
            f"{str(path)!r} cannot be written ({reason}): what was written before is kept; make room, or make the "
            "folder writable, and give the same command again"
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path to write the new content of `path` to: a reader finds the old file or the new one, never half.

    Raise DiskError if that does not work; nothing of the new file is left then.
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
    """Replace a file as `replacing` does. Return the CRC-32 of its content, as eight hexadecimal digits; it guards
    against accidents, not against an enemy, who could forge it."""
    with replacing(path) as partial:
        partial.write_bytes(content)
    return f"{zlib.crc32(content):08x}"


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
    """Replace a file by a text, in UTF-8; return its checksum."""
    return write_bytes(path, text.encode())


def checksum_of(path: Path) -> str:
    """Return the checksum of a file, which need not fit into memory."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def contents_digest(path: Path) -> str:
    """Return the SHA-256 of a file, which need not fit into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_changed(path: Path, expected: str) -> bool:
    """Return whether a file was cut off or changed. False for a missing one: people delete checkpoints once they have
    seen the tables."""
    try:
        return checksum_of(path) != expected
    except FileNotFoundError:
        return False
    except OSError:
        return True


def check_out(path: Path) -> None:
    """Raise InputError if no folder can be made at `path`. Make none yet: later checks may still find bad input."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # the parents are looked at below
    except (OSError, ValueError) as error:  # too long, a circle of links, a zero byte
        raise InputError(
            f"{str(path)[:100]!r} is no path ({getattr(error, 'strerror', error)}): choose another --out"
        ) from None
    there = next(part for part in (path.absolute(), *path.absolute().parents) if os.path.lexists(part))
    if not there.is_dir():
        raise InputError(f"{str(there)!r} is a file: choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{str(there)!r} cannot be written: choose another --out")


def make_out(path: Path) -> None:
    """Make a folder that is not there yet; raise InputError if that does not work."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {str(path)!r} cannot be made ({error.strerror}): choose another --out") from None
