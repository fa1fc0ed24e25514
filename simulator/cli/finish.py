"""The end of a run, an audit or a benchmark: pictures, page, verdict, table, gate, and the exit code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from simulator.cli.output import CommandResult, draw, here, out, records, say
from simulator.reports import tables
from simulator.reports.benchmark_advice import advice, benchmark_verdict, untrained
from simulator.reports.benchmark_table import EQUAL, TABLE, write_benchmark, write_equal_utility
from simulator.reports.gate import Limit, judge
from simulator.reports.screen import client_table, full_table, granted_lines, verdict_lines, worst_rows
from simulator.reports.verdict import Verdict, verdict
from simulator.run_errors import DiskError, NoResult, RowsWithoutResult, RunError
from simulator.rundir.exposure_rows import are_told
from simulator.rundir.run import Run
from simulator.terminal import print_error

AGAIN = (
    "; the same command tries attacks that ran out of time again, and keeps all other rows: give them longer by the "
    "option that `detail` names"
)


def finish_run(run_dir: Path, with_page: bool, show_all: bool, limits: Sequence[Limit] = ()) -> CommandResult:
    """Draw, write the page, print the verdict and the table, and hold the limits against it. show_all: every row and
    caveat. limits: of --fail-above."""
    if with_page:
        from simulator.reports.page.pages import write_report  # Matplotlib: 0.5 s that a run just read does without

        draw(lambda: write_report(run_dir, print_error))
    found = Run(run_dir)
    costs = tables.utility_of(found) if found.leakage.defense.nunique() > 1 else None
    data = show_leakage(found.leakage, run_dir, show_all, found.stopped, costs)
    return CommandResult(data, error_of(found.leakage, limits))


def finish_benchmark(run_dir: Path, with_page: bool, show_all: bool, limits: Sequence[Limit] = ()) -> CommandResult:
    """Write the tables of a benchmark, and print them and the verdict."""
    record = Run(run_dir)
    table = write_benchmark(record)
    equal = write_equal_utility(record, table)
    if with_page:
        from simulator.reports.page.pages import write_benchmark_report  # likewise

        draw(lambda: write_benchmark_report(record, table, equal, print_error))
    data = {"run": str(run_dir), **show_verdict(benchmark_verdict(record, table), show_all)}
    out.print(tables.in_letters(tables.defenses_grid(table), out.width), "")
    for line in (tables.BENCHMARK_LEGEND, *tables.untested(table)):
        out.print(line)
    if len(equal):
        out.print(tables.in_letters(tables.equal_utility_grid(equal), out.width))
        say(f"equal utility: {run_dir / EQUAL}")
    data |= {"files": show_files(run_dir, TABLE), "rows": records(table), "equal_utility": records(equal)}
    data |= {"advice": advice(table, untrained(record.utility))}
    for line in data["advice"][:1]:
        say(line)
    return CommandResult(data, error_of(record.leakage, limits))


def finish_unwritten(run_dir: Path, error: DiskError, show_all: bool, limits: Sequence[Limit]) -> CommandResult:
    """Print the tables of a run that the disk did not take: the screen needs no disk."""
    if error.tables is None or error.tables["leakage"].empty:
        return CommandResult({"run": str(run_dir)}, error)
    data = show_leakage(error.tables["leakage"], run_dir, show_all)
    error_of(error.tables["leakage"], limits)  # for what it says of rows without a value
    return CommandResult(data, error)


def show_leakage(
    leakage: pd.DataFrame,
    run_dir: Path,
    show_all: bool,
    stopped: str = "",
    costs: tables.Grid | None = None,
) -> dict[str, Any]:
    """Print a leakage table, the verdict first. Return them, of the table the rows on the screen, with all columns.
    stopped: the sentence of a run that did not finish. costs: the table of defenses, printed below."""
    data = show_verdict(verdict(leakage, stopped), show_all)
    table = (full_table if show_all else client_table)(leakage, out.width)
    out.print(table, "")
    if costs is not None and costs.rows:
        out.print(tables.in_letters(costs, out.width), "")
    for line in granted_lines(leakage):
        out.print(line)
    out.print(tables.legend((str(column.header) for column in table.columns), tables.is_blind(leakage)))
    files = show_files(run_dir, "leakage.csv")
    rows = leakage if show_all else worst_rows(leakage)
    return {"run": str(run_dir), **data, "rows": records(rows), "files": files}


def show_verdict(found: Verdict, show_all: bool) -> dict[str, Any]:
    """Print the verdict, and return its part of the result."""
    for line in [*verdict_lines(found, out.width, show_all), ""]:
        say(line)
    return {"verdict": found.as_json()}


def show_files(run_dir: Path, table: str) -> dict[str, Any]:
    """Print and return the paths of everything, relative to here if it is below."""
    run_dir = here(run_dir)
    files: dict[str, Any] = {"table": str(run_dir / table)} if (run_dir / table).exists() else {}
    if figures := sorted((run_dir / "figures").glob("*.png")):
        files["figures"] = list(map(str, figures))
        say(f"figures: {run_dir / 'figures'}: {', '.join(path.stem for path in figures)}")
    if (run_dir / "report.html").exists():
        files["page"] = str(run_dir / "report.html")
        say(f"page:    {files['page']}")
    if "table" in files:
        say(f"table:   {files['table']}")
    return files


def error_of(leakage: pd.DataFrame, limits: Sequence[Limit]) -> RunError | None:
    """Return the gravest error that the command ends with; None where every attack has its result, or was skipped.
    Name the rows on stderr that no limit can be held against."""
    if error := no_result(leakage):
        return error
    exceeded, unknown = judge(leakage, limits)
    for line in unknown:
        print_error(line)
    return exceeded or without_result(leakage)


def without_result(leakage: pd.DataFrame) -> RowsWithoutResult | None:
    """Return the error of a table in which some attacks failed or ran out of time."""
    faults = leakage.status[leakage.status.isin(("failed", "timeout"))]
    if not len(faults):
        return None
    counts = ", ".join(f"{count} {name}" for name, count in faults.value_counts().items())
    said = f"{len(faults)} of {len(leakage)} rows have no result ({counts}): `detail` says why"
    return RowsWithoutResult(said + again(leakage))


def no_result(leakage: pd.DataFrame) -> NoResult | None:
    """Return the error of a table in which no attack has a result and nothing else is known."""
    status = leakage.status
    if not len(status) or are_told(leakage).any():
        return None
    counts = ", ".join(f"{count} {name}" for name, count in status.value_counts().items())
    return NoResult(f"no attack gave a result ({counts}): nothing is known of what leaks" + again(leakage))


def again(leakage: pd.DataFrame) -> str:
    return AGAIN if leakage.status.eq("timeout").any() else ""
