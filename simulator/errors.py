"""Errors of a run, as opposed to those of its input."""

import re
from typing import Any

from attacks.interface.errors import InputError

ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)?")  # what moves and colours a terminal
LONGEST = 300


class RunError(RuntimeError):
    """The run had to stop. The command line prints the message and exits with `exit_code`; what was done is kept."""

    exit_code = 1


class DiskError(RunError):
    """A file could not be written. tables: of a run that ended by it, as data frames, where they could not be written
    either."""

    def __init__(self, message: str, tables: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.tables = tables


class CellsFailed(RunError):
    """Some cells had to stop. All others ran, and the tables hold what there is."""


class NoResult(RunError):
    """The run is complete, and no attack gave a result: nothing is known of what leaks."""

    exit_code = 3


def one_line(text: str, most: int = LONGEST) -> str:
    """Somebody else's text, fit for a terminal and a table: one line of at most so many characters, nothing in it that
    a terminal obeys."""
    words = " ".join(ESCAPES.sub("", text[: 20 * most]).split())
    return "".join(sign for sign in words if sign.isprintable())[:most]


def printable(text: str) -> str:
    """Somebody else's text of several lines, nothing in it that a terminal obeys."""
    return "\n".join("".join(sign for sign in line if sign.isprintable()) for line in ESCAPES.sub("", text).split("\n"))


__all__ = ["CellsFailed", "DiskError", "InputError", "NoResult", "RunError", "one_line", "printable"]
