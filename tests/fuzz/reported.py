"""`fedspill report` of a run directory, and what it may do to the terminal and to the files around."""

import contextlib
import io
from pathlib import Path

from simulator.cli.commands import ReportCommand
from simulator.cli.runs import report
from simulator.results.ledger import JOURNAL, read_journal
from simulator.rundir.run import Run


class Escaped(AssertionError):
    """Something that a terminal obeys, or a file beside the run."""


def report_it(root: Path | str) -> str:
    """What `report --all` and `attack --run` make of it, as text. Raises `Escaped` too."""
    root, said = Path(root), io.StringIO()
    before = {path.name for path in root.parent.iterdir()}
    read_journal(root / JOURNAL)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            report(ReportCommand(run_dir=root, show_all=True))
        finally:
            if odd := {sign for sign in said.getvalue() if not sign.isprintable() and sign != "\n"}:
                raise Escaped(f"{odd} reach the terminal")
            if more := {path.name for path in root.parent.iterdir()} - before:
                raise Escaped(f"written beside the run: {more}")
    Run(root).observation(1, 0)
    return said.getvalue()
