"""The page on a benchmark: defenses compared, then everything that a run's page has."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from simulator.reports.benchmark_table import strongest
from simulator.reports.drawing import Drawn
from simulator.reports.page.pictures import chart_of
from simulator.reports.page.rows import NUMERIC
from simulator.reports.page.run_page import Say, run_page
from simulator.reports.page.view import Grid, Heading, Others, Page
from simulator.results.benchmark_schema import EQUAL_UTILITY, benchmark
from simulator.results.columns import NUMBER, Column
from simulator.results.run import Run

INTERVALS = ("recovered_fraction", "test_accuracy")  # columns with `_low` and `_high` beside them


def benchmark_page(run: Run, table: pd.DataFrame, equal: pd.DataFrame, drawn: Sequence[Drawn], say: Say) -> Page:
    """table, equal: benchmark.csv and equal_utility.csv. The pictures of other clients give way to the figure that
    compares all defenses on the same images."""
    own = run_page(run, (), say)
    columns = [*benchmark().printed, benchmark().columns["not_attacked_by"]]
    defenses = grid_of("Defenses", strongest(table), columns)
    note = (
        "The attack that recovers most in the last attacked round, means over seeds and clients; in brackets the 95 % "
        "interval. ε: spent by then, against that threat model. Where an attack is named that gave no result, a low "
        "share says little: it may have been the strongest."
    )
    folded = [grid_of("All rows of benchmark.csv", table, [c for c in benchmark().columns.values() if c.name in table])]
    if len(equal):
        folded.insert(0, grid_of("Defenses at equal utility", equal, EQUAL_UTILITY.printed))
    return replace(
        own, kind="benchmark", utility=replace(defenses, note=note), others=Others(),
        charts=tuple(map(chart_of, drawn)), tables=(*folded, *own.tables),
        repeat=f"fedspill benchmark FILE --out runs/{run.path.name}-again",
        repeat_needs="FILE is the benchmark file; the scenario above lists every row and seed of it as a sweep.",
    )  # fmt: skip


def grid_of(title: str, frame: pd.DataFrame, columns: Sequence[Column]) -> Grid:
    """A table as its schema declares it; columns without any value are left out."""
    used = [column for column in columns if column.name in frame and frame[column.name].notna().any()]
    headings = tuple(Heading(column.heading, column.dtype in NUMERIC, column.meaning) for column in used)
    rows = tuple(tuple(_text(row, column) for column in used) for _, row in frame.iterrows())
    return Grid(title, headings, rows)


def _text(row: pd.Series, column: Column) -> str:
    value = row[column.name]
    if pd.isna(value):
        return ""
    if column.dtype != NUMBER:
        return str(value)
    if column.heading == "kB":
        return f"{value / 1000:.0f}"
    low, high = (row.get(f"{column.name}_{end}") for end in ("low", "high"))
    if column.name not in INTERVALS or pd.isna(low) or pd.isna(high):
        return f"{value:.{column.digits}f}"
    return f"{value:.2f} ({low:.2f}–{high:.2f})"
