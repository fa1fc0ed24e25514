"""Show a run on the screen: the verdict, then a line for each client, in 80 columns, with no cell cut off."""

import textwrap

import pandas as pd
from rich.table import Table

from simulator.reports.tables import CLOSER, cells_of, grid, in_letters, key_cells, worth_showing
from simulator.reports.verdict import TITLES, Verdict
from simulator.reports.verdict_words import sentence, told
from simulator.results.keys import ALL
from simulator.rundir.exposure_rows import about_private, exposure_rows, ranked

MAX_LINES = 60
CAVEATS = 6  # on the screen without --all
FIRST = ("client", "threat_model", "attack", "round")  # columns of the table of clients


def verdict_lines(verdict: Verdict, width: int, show_all: bool = False) -> list[str]:
    """Return the verdict in lines of at most `width` letters: level and headline, then the statements by kind."""
    lines = textwrap.wrap(f"{verdict.level.upper()}: {verdict.headline}", width)
    for kind, title in TITLES.items():
        said = verdict.of(kind)
        shown = said if show_all or kind != "caveats" else said[:CAVEATS]
        lines += ["", f"{title}:"] if shown else []
        for text in shown:
            lines += bullet(text, width)
        if more := len(said) - len(shown):
            lines += bullet(f"{more} more with --all.", width)
    return lines


def bullet(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="- ", subsequent_indent="  ")


def client_table(leakage: pd.DataFrame, width: int) -> Table:
    """Make a table with a line for each client and setting: its worst round and attack; the worst client first."""
    rows = worst_rows(leakage)
    columns = {column.name: column for column in worth_showing(rows) if not 0 < column.spare < CLOSER}
    order = [columns.pop(name) for name in FIRST if name in columns] + list(columns.values())
    more = f"the worst {MAX_LINES} of {len(rows)}; the others with --all, and in leakage.csv"
    title, note = "The worst for each client, the most exposed first", more if len(rows) > MAX_LINES else ""
    shown = rows.head(MAX_LINES)
    return in_letters(grid(title, key_cells(shown) | cells_of(shown, order), note), width)


def worst_rows(leakage: pd.DataFrame) -> pd.DataFrame:
    """Return the most exposing row of each client and setting; the most exposed client first."""
    order = ranked(exposure_rows(leakage)).drop_duplicates(["setting", "client"])
    return about_private(leakage).iloc[order.index]


def full_table(leakage: pd.DataFrame, width: int) -> Table:
    """Make a table of every row of the leakage table, in its order."""
    cells = key_cells(leakage) | cells_of(leakage, worth_showing(leakage))
    return in_letters(grid("Every attack in every round", cells), width)


def granted_lines(rows: pd.DataFrame) -> list[str]:
    """Say what attacks were told beyond the checkpoints, and if that differs, which of them."""
    own = rows[rows.status == "ok"]
    words = pd.Series([sentence(told(row)) for _, row in own.iterrows()], own.index, dtype="object")
    if words.nunique() < 2:
        return list(words.unique())
    views = own.client.map(lambda client: "who sees all clients together" if client == ALL else "who sees one client")
    simple = (own.threat_model, own.attack, views)  # the first that determines grants
    both = own.threat_model + " " + own.attack
    who = next((labels for labels in simple if (words.groupby(labels).nunique() == 1).all()), both)
    return [f"{', '.join(one.unique())}: {text[:1].lower()}{text[1:]}" for text, one in who.groupby(words)]
