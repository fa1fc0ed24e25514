"""The leakage table as a person reads it: scores rounded, each with its floor in parentheses."""

import json
import math
from collections.abc import Callable, Iterable

import pandas as pd
from rich import box
from rich.table import Table

from simulator.scenario.sweep import short_keys

MAX_ROWS = 60
LEGEND = (
    "leakage: 1 is exact; in parentheses stands the floor, the same score for who knows nothing: the better of as "
    "many public images and of their mean. "
    "recovered: PSNR of at least 20 dB and nearer to its private image than to any other of the pool. "
    "AUC: how well the update tells private images from public ones (0.5: not at all)."
)


def _with_floor(name: str, digits: int, better: Callable[[Iterable[float]], float]) -> Callable[[pd.Series], str]:
    def text(row: pd.Series) -> str:
        if pd.isna(row[name]):
            return ""
        known = [row[f"floor_{name}"], row.get(f"mean_image_{name}", math.nan)]  # the second: not in older runs
        return f"{row[name]:.{digits}f} ({better(value for value in known if not math.isnan(value)):.{digits}f})"

    return text


def _recovered(row: pd.Series) -> str:
    return f"{row['recovered']} of {row['num_private']}" if row["status"] == "ok" else str(row["status"])


def _knows(row: pd.Series) -> str:
    """The names of the granted fields, from the table's JSON."""
    text = row["knowledge"]
    return ", ".join(json.loads(text)) if isinstance(text, str) and text else ""


COLUMNS: dict[str, Callable[[pd.Series], str]] = {
    "round": lambda row: str(row["round"]),
    "client": lambda row: "all" if row["client"] < 0 else str(row["client"]),
    "threat": lambda row: row["threat_model"],
    "attack": lambda row: row["attack"],
    "recovered": _recovered,
    "leakage": _with_floor("leakage", 2, max),
    "L2 median": _with_floor("l2_median", 2, min),
    "PSNR mean": _with_floor("psnr_mean", 1, max),
    "AUC": lambda row: "" if pd.isna(row["membership_auc"]) else f"{row['membership_auc']:.2f}",
    "told": _knows,
}


def visible_columns(frame: pd.DataFrame, swept: list[str]) -> dict[str, Callable[[pd.Series], str]]:
    """The columns worth showing: attack, grants and whatever identifies a row only where they differ between rows."""
    swept = [name for name in swept if name != "defenses"]  # shown as the column `defense`
    varying = [
        name
        for name in ("defense", "seed", "target", *swept)
        if name in frame and frame[name].nunique(dropna=False) > 1
    ]
    first = {short: (lambda row, name=name: str(row[name])) for name, short in short_keys(varying).items()}
    constant = {name for name, column in (("attack", "attack"), ("told", "knowledge")) if frame[column].nunique() < 2}
    rest = {name: show for name, show in COLUMNS.items() if name not in constant}
    return first | rest


def leakage_table(frame: pd.DataFrame, swept: list[str]) -> Table:
    """One line per row of the leakage table, for a terminal of 80 columns or more."""
    columns = visible_columns(frame, swept)
    attacks = ", ".join(frame["attack"].unique())
    told = "" if "told" in columns or frame.empty else f", told {_knows(frame.iloc[0]) or 'nothing'}"
    title = f"Leakage: what the adversary reconstructed ({attacks}{told})"
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    for name in columns:
        left = name in ("threat", "attack", "told")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "told")
    for _, row in frame.head(MAX_ROWS).iterrows():
        table.add_row(*(show(row) for show in columns.values()))
    if len(frame) > MAX_ROWS:
        table.caption = f"the first {MAX_ROWS} of {len(frame)} rows; the rest is in leakage.csv"
    return table


BENCHMARK_LEGEND = (
    "recovered, leakage: of private images, by the attack that recovers most (*: told the defense in force); "
    "± half of the 95 % confidence interval over seeds. ε: at the end. kB: what a client sends in a round."
)


def benchmark_view(table: pd.DataFrame) -> Table:
    """For every defense and threat model the strongest attack, and what the defense costs."""
    own = table[table.target == "private"]
    view = Table(title="Defenses", title_justify="left", box=box.SIMPLE, padding=0, pad_edge=False, show_edge=False)
    names = ("defense", "threat", "attack", "recovered", "leakage", "AUC", "accuracy", "ε", "kB")
    for name in names:  # in 80 columns the defense has room for 18 letters, and folds beyond
        left, fold = name in names[:3], name == "defense"
        view.add_column(name, justify="left" if left else "right", no_wrap=not fold, overflow="fold")
    for (defense, threat), rows in own.groupby(["defense", "threat_model"], sort=False):
        row = rows.sort_values(["recovered_fraction", "leakage"], na_position="first").iloc[-1]
        view.add_row(
            defense,
            threat,
            f"{row['attack']}*" if row["adaptive"] else row["attack"],
            _interval(row, "recovered_fraction"),
            _number(row["leakage"], 2),
            _number(row["membership_auc"], 2),
            _interval(row, "test_accuracy"),
            _number(row["epsilon"], 1),
            _number(row["bytes"] / 1000, 0),
        )
    return view


def _number(value: float, digits: int) -> str:
    return "" if pd.isna(value) else f"{value:.{digits}f}"


def _interval(row: pd.Series, name: str) -> str:
    width = row[f"{name}_ci95"]
    return _number(row[name], 2) + ("" if pd.isna(row[name]) or pd.isna(width) else f" ±{width:.2f}")
