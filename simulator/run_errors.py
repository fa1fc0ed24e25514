"""Errors of a run, as opposed to those of its input, and the lines that describe errors."""

import errno
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch

from attacks.interface.errors import ESCAPES, LONGEST, InputError, one_line
from attacks.interface.plugins import GENERATED, OURS, users_frames

FAULT = "; a fault of fedspill"
NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)  # errors of impossible paths
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EIO, errno.ESTALE)


class RunError(RuntimeError):
    """The run had to stop. The command line prints the message and exits with `exit_code`; what was done is kept."""

    exit_code = 1


class DiskError(RunError):
    """A file could not be written. tables: of the run that ended by it, as data frames, if they are not written."""

    def __init__(self, message: str, tables: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.tables = tables


class CellsFailed(RunError):
    """Some cells had to stop. All others ran, and the tables hold what there is."""


class NoResult(RunError):
    """The run is complete, and no attack gave a result: nothing is known of what leaks."""

    exit_code = 3


class RowsWithoutResult(RunError):
    """The run is complete, and some of its attacks failed or ran out of time."""

    exit_code = 5


OF_TORCH = (torch.OutOfMemoryError, torch.AcceleratorError, torch.linalg.LinAlgError)
NOT_OURS = (InputError, RunError, OSError, MemoryError, ImportError, *OF_TORCH)  # of the input or of the machine
TORCH = (str(Path(torch.__file__).parent), *GENERATED)  # files of frames that say nothing of who is to blame


def printable(text: str) -> str:
    """Remove the control characters from somebody else's text of several lines."""
    signs = (sign if sign.isprintable() or sign == "\n" else " " * sign.isspace() for sign in ESCAPES.sub("", text))
    return "".join(signs)


def one_line_error(error: BaseException) -> str:
    """Describe an exception in one line: its type, its text, and the line of the user's code that raised it."""
    said, where = one_line(f"{type(error).__name__}: {error}").removesuffix(":"), user_code(error)
    return f"{said}, in or below {where}" if where and not isinstance(error, InputError) else said


def blamed_error(error: BaseException) -> str:
    """Describe an exception in one line that says so if it is a fault of fedspill."""
    if not _is_own_fault(error):
        return one_line_error(error)
    return one_line(one_line_error(error), most=LONGEST - len(FAULT)) + FAULT


def _is_own_fault(error: BaseException) -> bool:
    """Return whether fedspill's own code raised an exception that is none of the input or of the machine, itself or by
    what it gave to torch; not where torch ran a module, as layers of the user's that do not fit one another."""
    if user_code(error) or isinstance(error, NOT_OURS):
        return False
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(OURS) or frame.name == "_call_impl" or not frame.filename.startswith(TORCH):
            return frame.filename.startswith(OURS)
    return False


def refused_file(error: BaseException) -> str:
    """Describe in one line that the machine refused a file, as on a full disk; "" for any other exception."""
    if not isinstance(error, OSError) or error.errno not in REFUSALS:
        return ""
    named = "" if error.filename is None else f"{str(error.filename)!r}: "
    return f"{one_line(f'{named}{error.strerror}')}; what is written is kept, and the same command goes on from there"


def no_path(error: BaseException) -> str:
    """Describe in one line that a path is impossible, a fault of the input; "" for any other exception."""
    if not isinstance(error, OSError) or error.errno not in NO_PATH:
        return ""
    return one_line(f"{str(error.filename)[:100]!r} is no path: {error.strerror}")


def unexpected(error: BaseException) -> str:
    """Describe an unforeseen exception in one line, and write its stack into a file."""
    stack = "".join(traceback.format_exception(error))
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="fedspill-", suffix=".txt", delete=False, errors="replace"
    ) as file:
        file.write(stack)
    own = "; this is a fault of fedspill" if _is_own_fault(error) else ""
    whose = ", which is no code of fedspill's" if user_code(error) else own
    return f"unexpected {one_line_error(error)}{whose}; the stack is in {file.name}"


def user_code(error: BaseException) -> str:
    """Return FILE:LINE of the innermost code of the user, such as a network, an attack or a defense; "" for none."""
    frames = users_frames(error)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
