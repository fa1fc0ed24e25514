"""The one door to the terminal: texts of tables, lines and errors may be somebody else's, and are shown as they are."""

import contextlib
import json
import sys
import warnings
from typing import Any

from rich.console import Console
from rich.text import Text

from simulator.errors import printable


class Terminal(Console):
    """A console that takes no text for markup and lets nothing through that a terminal obeys, in tables neither.

    What is to be coloured is a `Text`, of which the foreign parts are `printable`.
    """

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Nobody reads any more, which ends no run: Rich would raise SystemExit."""
        self.quiet = True


def print_error(line: str) -> None:
    """A line for people, on stderr, as long as that is open."""
    with contextlib.suppress(OSError):
        print(f"fedspill: {printable(line)}", file=sys.stderr)


def print_json(data: Any, default: Any = None) -> None:
    """JSON on stdout: letters as they are, and what a terminal obeys as its number, which readers of JSON take back."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False, default=default)
    print("".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text))


def guard_warnings() -> None:
    """Those of libraries quote what they were given."""

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        print(printable(warnings.formatwarning(message, category, filename, lineno, line)), end="", file=sys.stderr)

    warnings.showwarning = show
