"""The one door through which files of a run are written: a file is there as a whole or not at all, its checksum is
known, and a disk that does not take it is one line."""

import contextlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from simulator.errors import DiskError, one_line

BLOCK = 2**22  # bytes that are read at a time


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


def write_bytes(path: Path, content: bytes) -> str:
    """A reader finds the old file or the new one, never half of one. Returns the checksum of the content.

    Raises DiskError, and then leaves nothing of the new one.
    """
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        try:
            partial.write_bytes(content)
            os.replace(partial, path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
    return checksum(content)


def write_atomically(path: Path, text: str) -> str:
    """`write_bytes` of a text, in UTF-8."""
    return write_bytes(path, text.encode())


def checksum(content: bytes) -> str:
    """CRC-32, eight hexadecimal digits: against accidents, not against an enemy, who would write a fitting one."""
    return f"{zlib.crc32(content):08x}"


def is_changed(path: Path, expected: str) -> bool:
    """Whether a file is another than the one with this checksum: cut off, or changed. One that is gone is not: people
    delete checkpoints when they have seen their tables."""
    found = 0
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                found = zlib.crc32(block, found)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return f"{found:08x}" != expected
