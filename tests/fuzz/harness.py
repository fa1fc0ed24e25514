"""Reads broken input of a kind, and notes what came of it."""

import contextlib
import io
import random
import resource
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clients.time_limit import time_limit
from simulator.run_errors import InputError, RunError
from tests.fuzz.kinds import KINDS

LONGEST, MOST_MIB, MOST_LINES = 10.0, 1024.0, 5
UNIT = 0.01  # seconds of `_work` on the machine that LONGEST is meant for


@dataclass
class Report:
    """findings: (the last line of what was raised, where the input is kept). mib: beyond the start, at most."""

    kind: str
    refused: int = 0
    read: int = 0
    slowest: float = 0.0
    mib: float = 0.0
    findings: list[tuple[str, str]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class TooSlow(BaseException):
    """No `except Exception` on the way catches it."""


def fuzz(kind: str, count: int, seed: int, keep: Path | None = None) -> Report:
    """Read so many inputs. keep: where those that are findings are kept, each with its traceback."""
    report, rng, chosen = Report(kind), random.Random(f"{kind} {seed}"), KINDS[kind]
    before, longest = peak(), longest_here()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, given in zip(range(count), chosen.inputs(Path(folder), rng), strict=False):
            start = time.perf_counter()
            try:
                with (
                    time_limit(longest, TooSlow),
                    contextlib.redirect_stdout(io.StringIO()),
                    contextlib.redirect_stderr(io.StringIO()),
                ):
                    chosen.read(given)
                report.read += 1
            except (InputError, RunError) as error:
                report.refused += 1
                if len(str(error).splitlines()) > MOST_LINES:
                    _note(report, f"{len(str(error).splitlines())} lines: {str(error)[:80]!r}", number, given, keep)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                _note(report, f"{type(error).__name__}: {str(error)[:100]!r}", number, given, keep)
            spent = time.perf_counter() - start
            report.slowest = max(report.slowest, spent)
            if spent > longest:
                _note(report, f"{spent:.0f} s", number, given, keep)
            beyond = peak() - before
            if beyond > MOST_MIB > report.mib:
                _note(report, f"{beyond:.0f} MiB", number, given, keep)
            report.mib = max(report.mib, beyond)
    return report


def longest_here() -> float:
    """LONGEST; in proportion longer where this machine is slower, or busy."""
    return LONGEST * max(1.0, min(_work() for _ in range(3)) / UNIT)


def _work() -> float:
    """Seconds of a fixed piece of Python: what readers of text do, character by character."""
    start, seen = time.perf_counter(), 0
    for sign in "x: [1, 2]\n" * 30_000:
        seen += sign in "[]{},:"
    return time.perf_counter() - start


def peak() -> float:
    """MiB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextlib.contextmanager
def silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _note(report: Report, what: str, number: int, given: Path | str, keep: Path | None) -> None:
    place = f"input {number}"
    if keep is not None:
        folder = keep / report.kind.replace(" ", "_") / f"{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "traceback.txt").write_text(traceback.format_exc(), errors="replace")
        if isinstance(given, Path):
            for path in [given] if given.is_file() else [path for path in given.rglob("*") if path.is_file()]:
                (folder / path.name).write_bytes(path.read_bytes())
        else:
            (folder / "text.txt").write_text(given, errors="surrogatepass")
        place = str(folder)
    report.findings.append((what, place))
