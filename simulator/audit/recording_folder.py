"""The folder that a recording is written to: it is claimed by one recording at a time, and an earlier one makes way."""

import os
import re
import shutil
from itertools import count
from pathlib import Path

from filelock import BaseFileLock

from attacks.interface.errors import InputError
from simulator.audit.messages import log
from simulator.audit.recording import CONTENTS, Recording
from simulator.results.disk import LOCK, acquired, is_occupied

OWN = re.compile(  # what a recording writes, below its folder
    r"\.lock|\.?recording\.json(\.partial)?|checkpoints"
    r"|checkpoints/\.?((global|sent|client)_\w+\.safetensors|round_\w+\.json)(\.partial)?"
)


class RecordingFolder:
    """A folder for one recording."""

    def __init__(self, path: Path):
        """Make nothing yet. Raise InputError if the folder holds something else than a recording, an earlier one that
        cannot make way, or one that is under way."""
        self.path = Path(os.path.realpath(path))  # a link that moves away leaves the folder where it was
        self.lock: BaseFileLock | None = None
        self.occupied = (
            f"another process records into {str(self.path)!r}, or a Record of this one whose finish() was not called: "
            "name another folder"
        )
        _check(self.path)
        if is_occupied(self.path):
            raise InputError(f"Record: {self.occupied}")

    def claim(self, is_ours: bool) -> None:
        """Make the folder and keep others out, whose checkpoints would mix with these.

        is_ours: whether the recording in the folder is this one; any other moves away.
        """
        if self.lock is not None:
            return
        if not is_ours and (self.path / CONTENTS).exists():
            with acquired(self.path, self.occupied):
                _move_away(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = acquired(self.path, self.occupied)

    def release(self) -> None:
        """Let others into the folder."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None


def _check(path: Path) -> None:
    """Raise InputError if `path` holds something else than a recording, or an earlier one that cannot make way."""
    if path.is_dir() and (path / CONTENTS).exists():
        if path.is_mount() or not os.access(path.parent, os.W_OK | os.X_OK):
            raise InputError(
                f"Record: {str(path)!r} holds an earlier recording and cannot be renamed (what it lies in cannot be "
                "written, or it is a volume of its own): name another folder, below it for example"
            )
        return
    if path.exists() and not (path.is_dir() and all(inside.name == LOCK for inside in path.iterdir())):
        raise InputError(f"Record: {str(path)!r} holds something else than a recording: name another folder")


def _move_away(path: Path) -> None:
    """Rename an earlier recording to `NAME.previous`; if one is there already, keep the longer of the two.

    So a server that is started over and over neither fills the disk nor removes the days before. A folder that holds
    files of the user's is never removed.
    """
    ends = (f".previous-{number}" if number > 1 else ".previous" for number in count(1))
    beside = (path.with_name(path.name + end) for end in ends)
    previous = next(other for other in beside if not os.path.lexists(other) or _is_recording_alone(other))
    if previous.exists() and _length(previous) > _length(path):
        if _is_recording_alone(path):
            shutil.rmtree(path)
            log.info("fedspill: the recording that was there has made way; the longer one before it is %s", previous)
            return
        previous = next(other for other in beside if not os.path.lexists(other))
    elif previous.exists():
        shutil.rmtree(previous)
    path.rename(previous)
    log.info("fedspill: the recording that was there is now %s", previous)


def _length(recording: Path) -> int:
    """Return the number of its rounds; 0 if it is damaged."""
    try:
        return len(Recording(recording).rounds)
    except (InputError, OSError, ValueError):
        return 0


def _is_recording_alone(folder: Path) -> bool:
    """Return whether a folder holds a recording and nothing else, so that nobody misses more than that."""
    return (folder / CONTENTS).is_file() and all(
        OWN.fullmatch(path.relative_to(folder).as_posix()) and not path.is_symlink() for path in folder.rglob("*")
    )
