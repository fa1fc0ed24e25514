"""Print for people and as JSON.

A command returns a CommandResult, and prints for people on the way. With `--json` stdout has one JSON object, its
data; the lines for people go to stderr if that is a terminal, and else nowhere: both streams together are still JSON.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.text import Text

from attacks.interface.errors import InputError
from simulator.run_errors import RunError, blamed_error, no_path, one_line_error, printable, refused_file
from simulator.terminal import Terminal, print_error, print_json

out = Terminal()


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    data: plain values.
    error: raised after these are printed, if any.
    """

    data: dict[str, Any] = field(default_factory=dict)
    error: RunError | None = None


def in_json(work: Callable[[], CommandResult]) -> CommandResult:
    """Do the work of a command, print its result as JSON and return it. Print an error as JSON too, and raise it."""
    people = sys.stderr if sys.stderr.isatty() else io.StringIO()
    try:
        with contextlib.redirect_stdout(people), contextlib.redirect_stderr(people):
            result = work()
    except Exception as error:
        known = isinstance(error, InputError | RunError)
        foreseen = str(error) if known else no_path(error) or refused_file(error)
        print_json({"error": foreseen or f"unexpected {blamed_error(error)}"})
        raise
    print_json(result.data | ({"error": str(result.error)} if result.error is not None else {}))
    return result


def records(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame, each with the columns that have a value."""
    rows = json.loads(frame.to_json(orient="records"))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def say(line: str) -> None:
    """Print a line without wrapping, so that paths can be copied."""
    out.print(line, soft_wrap=True)


def show_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        out.print(Text.assemble(("warning", "yellow"), ": ", printable(warning)))


def draw(figures: Callable[[], object]) -> None:
    """Draw figures; if that fails, print a line and go on."""
    try:
        with out.status("drawing figures …"):
            figures()
    except Exception as error:
        print_error(f"figures could not be drawn: {one_line_error(error)}")


def here(path: Path) -> Path:
    """Return the path relative to the working folder, if it lies below."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_absolute() and path.is_relative_to(folder) else path
