"""What commands print, for people and as JSON.

A command returns an Answer. People read what it prints on the way. With `--json` stdout has one JSON object, the
answer's data; what people would read goes to stderr where that is a terminal, and else nowhere: a program that reads
both streams as one gets JSON.
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
from simulator.errors import RunError, no_path, printable, refused_file, said_by
from simulator.terminal import Terminal, print_error, print_json

out = Terminal()


@dataclass(frozen=True)
class Answer:
    """What a command found. data: plain values. error: what it ends with once that is printed, if anything."""

    data: dict[str, Any] = field(default_factory=dict)
    error: RunError | None = None


def in_json(work: Callable[[], Answer]) -> Answer:
    """Do the work of a command, print its answer as JSON, and return it; an error is printed so too, and raised."""
    people = sys.stderr if sys.stderr.isatty() else io.StringIO()
    try:
        with contextlib.redirect_stdout(people), contextlib.redirect_stderr(people):
            answer = work()
    except Exception as error:
        known = isinstance(error, InputError | RunError)
        foreseen = str(error) if known else no_path(error) or refused_file(error)
        print_json({"error": foreseen or f"unexpected {said_by(error)}"})
        raise
    print_json(answer.data | ({"error": str(answer.error)} if answer.error is not None else {}))
    return answer


def records(frame: Any) -> list[dict[str, Any]]:
    """The rows of a DataFrame with the columns that have a value in them."""
    rows = json.loads(frame.to_json(orient="records"))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def read_json(path: Path) -> dict[str, Any]:
    """What a command wrote."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def say(line: str) -> None:
    """As it is: brackets are no markup, and paths are not broken."""
    out.print(line, soft_wrap=True)


def show_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        out.print(Text.assemble(("warning", "yellow"), ": ", printable(warning)))


def warn(line: str) -> None:
    """A line for people, on stderr."""
    print_error(line)


def draw(figures: Callable[[], object]) -> None:
    """Figures that cannot be drawn cost a line, not the table."""
    try:
        with out.status("drawing figures …"):
            figures()
    except Exception as error:
        warn(f"figures could not be drawn: {type(error).__name__}: {' '.join(str(error).split())}")


def here(path: Path) -> Path:
    """The path as seen from the working folder, where it lies below."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_absolute() and path.is_relative_to(folder) else path
