"""report.html of a run, an audit or a benchmark: figures drawn, everything on one page, written into its directory."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from simulator.reports.benchmark_figures import draw_benchmark
from simulator.reports.figures import draw_figures
from simulator.reports.page.pages import benchmark_page, run_page
from simulator.reports.page.view import render
from simulator.results.disk import write_atomically
from simulator.rundir.run import PAGE, Run

Say = Callable[[str], None]


def is_current(run_dir: Path) -> bool:
    """Whether there is a page that was made after the tables."""
    page, table = run_dir / PAGE, run_dir / "leakage.csv"
    return page.exists() and page.stat().st_mtime_ns >= table.stat().st_mtime_ns


def write_report(run_dir: Path, say: Say = print) -> None:
    """Draw the figures of a finished run or audit, and write its page. say: takes a line for each figure that cannot
    be drawn."""
    run = Run(run_dir)
    write_atomically(run.path / PAGE, render(run_page(run, draw_figures(run, say), say)))


def write_benchmark_report(run: Run, table: pd.DataFrame, equal: pd.DataFrame, say: Say = print) -> None:
    """The same of a benchmark. table, equal: what `write_benchmark` and `write_equal_utility` returned."""
    write_atomically(run.path / PAGE, render(benchmark_page(run, table, equal, draw_benchmark(run, table, say), say)))
