"""The leakage table as a person reads it: scores rounded, each with its uninformed baseline in parentheses."""

import json
from collections.abc import Callable

import pandas as pd
from rich import box
from rich.table import Table

from simulator.reports.benchmark_table import strongest
from simulator.results.schema import EQUAL_UTILITY, LEAKAGE, NUMBER, TEXT, Column, benchmark
from simulator.scenario.sweep import short_keys

MAX_ROWS = 60
LEGEND = (
    "leakage: 1 is exact; in parentheses stands the uninformed baseline, the same score for who knows nothing: the "
    "better of as many public images and of their mean. "
    "recovered: PSNR of at least 20 dB and nearer to its private image than to any other of the pool. "
    "AUC: how well the update tells private images from public ones (0.5: not at all)."
)
BENCHMARK_LEGEND = (
    "recovered, leakage: of private images, by the attack that recovers most in the last attacked round (*: granted the "
    "defense in force), with the 95 % interval over clients within seeds; held: with the candidates that it would not "
    "return. accuracy, ε: after that round, ± half of the 95 % interval over seeds; ε: against the threat model of the "
    "row, of one record or of a whole client. kB: what a client sends in a round."
)
Show = Callable[[pd.Series], str]


def leakage_table(frame: pd.DataFrame, swept: list[str]) -> Table:
    """One line per row of the leakage table, for a terminal of 80 columns or more."""
    columns, granted = visible_columns(frame, swept), LEAKAGE.columns["knowledge"].heading
    attacks = ", ".join(frame["attack"].unique())
    given = "" if granted in columns or frame.empty else f"; {granted}: {_granted(frame.iloc[0]) or 'none'}"
    table = _empty_table(f"Leakage: what the adversary reconstructed ({attacks}{given})", padding=1)
    texts = [column.heading for column in LEAKAGE.printed if column.dtype == TEXT]
    for name in columns:
        table.add_column(name, justify="left" if name in texts else "right", no_wrap=name != granted)
    for _, row in frame.head(MAX_ROWS).iterrows():
        table.add_row(*(show(row) for show in columns.values()))
    if len(frame) > MAX_ROWS:
        table.caption = f"the first {MAX_ROWS} of {len(frame)} rows; the rest is in leakage.csv"
    return table


def visible_columns(frame: pd.DataFrame, swept: list[str]) -> dict[str, Show]:
    """How to show the columns worth showing, by title: attack, grants and whatever identifies a row only where they
    differ between rows."""
    swept = [name for name in swept if name != "defenses"]  # shown as the column `defense`
    varying = [
        name
        for name in ("defense", "seed", "target", *swept)
        if name in frame and frame[name].nunique(dropna=False) > 1
    ]
    first = {short: (lambda row, name=name: str(row[name])) for name, short in short_keys(varying).items()}
    constant = {name for name in ("attack", "knowledge") if frame[name].nunique() < 2}
    columns = [column for column in LEAKAGE.printed if column.name not in constant]
    return first | {column.heading: LEAKAGE_CELLS.get(column.name, _beside_baseline(column)) for column in columns}


def benchmark_view(table: pd.DataFrame) -> Table:
    """For every defense and threat model the strongest attack, and what the defense costs."""
    rows = strongest(table)
    columns = [column for column in benchmark().printed if column.name != "held_fraction" or _more_is_held(rows)]
    view = _empty_table("Defenses", padding=0)
    for column in columns:  # in 80 columns the defense has room for 18 letters, and folds beyond
        left, fold = column.dtype == TEXT, column.name == "defense"
        view.add_column(column.heading, justify="left" if left else "right", no_wrap=not fold, overflow="fold")
    for _, row in rows.iterrows():
        view.add_row(*(BENCHMARK_CELLS.get(column.name, _plain(column))(row) for column in columns))
    return view


def equal_utility_view(table: pd.DataFrame) -> Table:
    """For every swept defense and accepted loss of accuracy the strongest setting, and what it lets through."""
    columns = EQUAL_UTILITY.printed
    view = _empty_table("Equal utility: the strongest setting within a loss of accuracy", padding=0)
    for column in columns:
        view.add_column(column.heading, justify="left" if column.dtype == TEXT else "right", overflow="fold")
    for _, row in table.iterrows():
        cells = (BENCHMARK_CELLS.get(column.name, _plain(column)) for column in columns)
        view.add_row(
            *(cell(row) if pd.notna(row[column.name]) else "" for cell, column in zip(cells, columns, strict=True))
        )
    return view


def _empty_table(title: str, padding: int) -> Table:
    """padding: spaces between columns."""
    return Table(
        title=title, title_justify="left", box=box.SIMPLE, padding=(0, padding, 0, 0), pad_edge=False, show_edge=False
    )


def _number(value: float, digits: int) -> str:
    return "" if pd.isna(value) else f"{value:.{digits}f}"


def _plain(column: Column) -> Show:
    """Numbers rounded, all else as it is."""
    name, digits, is_number = column.name, column.digits, column.dtype == NUMBER
    return lambda row: _number(row[name], digits) if is_number else str(row[name])


def _beside_baseline(column: Column) -> Show:
    """With the uninformed baseline in parentheses where the score has one: the better of as many public images and of
    their mean, which older runs lack."""

    def text(row: pd.Series) -> str:
        known = [row.get(f"{prefix}_{column.name}") for prefix in ("floor", "mean_image")]
        baselines = [baseline for baseline in known if not pd.isna(baseline)]
        shown = _plain(column)(row)
        return f"{shown} ({_number(column.better(baselines), column.digits)})" if shown and baselines else shown

    return text


def _recovered(row: pd.Series) -> str:
    return f"{row['recovered']} of {row['num_private']}" if row["status"] == "ok" else str(row["status"])


def _granted(row: pd.Series) -> str:
    """The names of the granted fields, from the table's JSON."""
    text = row["knowledge"]
    return ", ".join(json.loads(text)) if isinstance(text, str) and text else ""


def _more_is_held(rows: pd.DataFrame) -> bool:
    """Whether any attack doubts images that it has."""
    return "held_fraction" in rows and bool((rows.held_fraction > rows.recovered_fraction).any())


def _clustered(name: str) -> Show:
    """With both ends of its interval, written short: 0.50 .38–.62."""

    def end(value: float) -> str:
        return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1"

    def text(row: pd.Series) -> str:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        return _number(row[name], 2) + ("" if pd.isna(low) else f" {end(low)}–{end(high)}")

    return text


def _epsilon(row: pd.Series) -> str:
    """With what it hides."""
    unit = row.get("privacy_unit")
    return _number(row["epsilon"], 1) + ("" if pd.isna(row["epsilon"]) or not isinstance(unit, str) else f" {unit}")


def _interval(name: str) -> Show:
    def text(row: pd.Series) -> str:
        width = row[f"{name}_ci95"]
        return _number(row[name], 2) + ("" if pd.isna(row[name]) or pd.isna(width) else f" ±{width:.2f}")

    return text


LEAKAGE_CELLS: dict[str, Show] = {  # what is more than a value and its baseline
    "client": lambda row: "all" if row["client"] < 0 else str(row["client"]),
    "recovered": _recovered,
    "knowledge": _granted,
}
BENCHMARK_CELLS: dict[str, Show] = {
    "attack": lambda row: f"{row['attack']}*" if row["adaptive"] else row["attack"],
    "recovered_fraction": _clustered("recovered_fraction"),
    "test_accuracy": _interval("test_accuracy"),
    "epsilon": _epsilon,
    "bytes": lambda row: _number(row["bytes"] / 1000, 0),
}
