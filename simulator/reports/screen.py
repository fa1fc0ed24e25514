"""What a run shows on the screen: the verdict, then a line for each client, in 80 columns and without a cell cut."""

import json
import textwrap
from collections.abc import Sequence

import pandas as pd
from rich.table import Table

from simulator.reports.tables import Layout, Show, text_table, visible_columns
from simulator.reports.verdict import Verdict
from simulator.results.columns import TEXT
from simulator.results.keys import ALL
from simulator.results.schema import LEAKAGE
from simulator.rundir.exposure_rows import about_private, exposure_rows, ranked

MAX_LINES = 60
CAVEATS = 6  # on the screen without --all
WORST = "client threat attack round recovered recognized held affine group leakage AUC members".split()  # headings
SETTING, GRANTED = "setting", LEAKAGE.columns["knowledge"].heading
LAYOUT = Layout(
    texts={SETTING, *(column.heading for column in LEAKAGE.printed if column.dtype == TEXT)},
    spare=("precision", "PSNR mean", "L2 median"),
    dropped=("group", "affine", "held", "recognized"),  # the verdict says what they do
)


def verdict_lines(verdict: Verdict, width: int, show_all: bool = False) -> list[str]:
    """The verdict in lines of at most `width` letters: its level and headline, details, and what it does not say."""
    lines = textwrap.wrap(f"{verdict.level.upper()}: {verdict.headline}", width)
    for detail in verdict.details:
        lines += bullet(detail, width)
    shown = verdict.caveats if show_all else verdict.caveats[:CAVEATS]
    if shown:
        lines += ["", "What this does not say:"]
    for caveat in shown:
        lines += bullet(caveat, width)
    if more := len(verdict.caveats) - len(shown):
        lines += bullet(f"{more} more with --all.", width)
    return lines


def bullet(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="- ", subsequent_indent="  ")


def client_table(leakage: pd.DataFrame, swept: list[str], width: int) -> Table:
    """A line for each client, and of a sweep for each setting: its worst round and attack; the worst client first."""
    title = "The worst for each client, the most exposed first"
    return row_table(worst_rows(leakage), swept, width, title, WORST)


def worst_rows(leakage: pd.DataFrame) -> pd.DataFrame:
    """The row of each client, and of a sweep of each setting, that exposes most; the most exposed client first."""
    order = ranked(exposure_rows(leakage)).drop_duplicates(["setting", "client"])
    return about_private(leakage).iloc[order.index]


def full_table(leakage: pd.DataFrame, swept: list[str], width: int) -> Table:
    """Every row of the leakage table, in its order."""
    return row_table(leakage, swept, width, "Every attack in every round")


def row_table(
    rows: pd.DataFrame, swept: list[str], width: int, title: str, headings: Sequence[str] | None = None
) -> Table:
    """Rows of the leakage table in `width` letters: columns that tell less are left out where they do not fit.

    headings: of the columns to show, as far as they say anything; default all.
    """
    cells = visible_columns(rows, swept)
    declared = [column.heading for column in LEAKAGE.printed]
    shown = {name: cells[name] for name in headings or declared if name in cells and name != GRANTED}
    most = len(rows) if headings is None else MAX_LINES
    texts = {name: [show(row) for _, row in rows.head(most).iterrows()] for name, show in shown.items()}
    if keys := [name for name in cells if name not in declared]:
        texts[SETTING] = [_setting(row, keys, cells) for _, row in rows.head(most).iterrows()]
    table = text_table(title, texts, width, LAYOUT)
    if len(rows) > most:
        table.caption = f"the worst {most} of {len(rows)}; the others with --all, and in leakage.csv"
    return table


def granted_lines(rows: pd.DataFrame) -> list[str]:
    """What was granted beyond the checkpoints, and where that differs, to whom, in as few words as tell."""
    names = rows.knowledge.map(lambda text: ", ".join(json.loads(text)) if isinstance(text, str) and text else "")
    names = names[rows.status == "ok"]
    if names.nunique() < 2:
        return [f"granted knowledge: {text or 'none'}" for text in names.unique()]
    own = rows.loc[names.index]
    views = own.client.map(lambda client: "who sees all clients together" if client == ALL else "who sees one client")
    simple = (own.threat_model, own.attack, views)  # the first that grants go by
    both = own.threat_model + " " + own.attack
    who = next((labels for labels in simple if (names.groupby(labels).nunique() == 1).all()), both)
    return [f"granted knowledge: {text or 'none'}: {', '.join(own.unique())}" for text, own in who.groupby(names)]


def _setting(row: pd.Series, keys: list[str], cells: dict[str, Show]) -> str:
    """Which point of a sweep a row is of: `noise, seed=1, width=64`."""
    named = ("defense", "target")
    return ", ".join(cells[key](row) if key in named else f"{key}={cells[key](row)}" for key in keys)
