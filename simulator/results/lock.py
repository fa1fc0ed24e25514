"""Who may write into a folder: one at a time."""

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from simulator.errors import RunError

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
