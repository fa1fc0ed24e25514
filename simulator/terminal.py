"""Print to the terminal: every text passes here, as it may be somebody else's and hold control characters.

stdout and stderr may end before a command does: the reader of a pipe leaves, or a disk is full.
"""

import contextlib
import errno
import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text

from simulator.run_errors import printable


class Terminal(Console):
    """A console that shows markup and control characters as text, in tables too. For colours, print a `Text` whose
    foreign parts are `printable`."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Go on without a reader: Rich would raise SystemExit."""
        self.quiet = True


def command_again() -> str:
    """Return the command that was typed, as one types it to go on: without --overwrite."""
    return " ".join(["fedspill", *(shlex.quote(word) for word in sys.argv[1:] if word != "--overwrite")])


def print_error(line: str) -> None:
    """Print a line for people on stderr, if that is still open."""
    with contextlib.suppress(OSError):
        print(f"fedspill: {printable(line)}", file=sys.stderr)


def print_json(data: Any) -> None:
    """Print JSON: letters as they are, control characters escaped, paths as texts, NumPy's numbers as numbers."""

    def plain(value: Any) -> Any:
        return value.item() if hasattr(value, "item") else str(value)

    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False, default=plain)
    print("".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text))


def guard_warnings() -> None:
    """Make warnings printable: those of libraries quote foreign text."""

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        print(printable(warnings.formatwarning(message, category, filename, lineno, line)), end="", file=sys.stderr)

    warnings.showwarning = show


class Outlet:
    """A stream that never fails, so that a run of days does not end with its terminal. failed: the first error."""

    def __init__(self, stream: TextIO) -> None:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of letters that its encoding does not have
        self.stream = stream
        self.failed: OSError | None = None

    def write(self, text: str) -> int:
        with self._taken():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._taken():
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @contextlib.contextmanager
    def _taken(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failed = self.failed or error
            with contextlib.suppress(OSError):  # a stream without a file
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.stream.fileno())  # what is left in the stream, and what children print
                os.close(null)

    @property
    def is_lost(self) -> bool:
        """Whether output was lost that somebody waits for; a reader that has left does not."""
        return self.failed is not None and self.failed.errno != errno.EPIPE


@contextlib.contextmanager
def outlets() -> Iterator[Outlet]:
    """Make outlets of stdout and stderr inside the block; yield that of stdout."""
    # Closed by whoever started us, a stream leaves its number to the next file: a journal held a crash's stack.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    before, stdout = (sys.stdout, sys.stderr), Outlet(sys.stdout)
    sys.stdout, sys.stderr = cast(TextIO, stdout), cast(TextIO, Outlet(sys.stderr))
    try:
        yield stdout
    finally:
        stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
