"""Tables of a page: every row of the leakage table, who can do what, and what the model is worth."""

import pandas as pd

from simulator.reports.exposure_rows import exposure_rows, settings_of, worst_of
from simulator.reports.page.view import Grid, Heading
from simulator.reports.panel_titles import short, swept_keys
from simulator.reports.strips import who, worst_first
from simulator.reports.verdict_words import percent, told, viewer
from simulator.results.schema import COUNT, INTEGER, LEAKAGE, NUMBER, Column

MOST_ROWS = 2000
SEES = {
    "server": "the update of each client (of all clients together under secure aggregation)",
    "observer": "the global model before and after a round, as any participant does",
    "history": "all rounds so far",
    "server_history": "the updates of all rounds so far",
}
NUMERIC = (INTEGER, COUNT, NUMBER)
COUNTS = {"recovered_fraction": "recovered", "held_fraction": "held"}  # columns that are shown as counts
FLOORS = ("floor_{}", "mean_image_{}")


def leakage_grid(leakage: pd.DataFrame) -> Grid:
    """Every row, those that expose most first, each score beside its uninformed baseline."""
    keys = [
        name for name in ("defense", "seed", "target", *swept_keys(leakage)) if leakage[name].nunique(dropna=False) > 1
    ]
    shown = [column for column in LEAKAGE.printed if column.name in leakage and leakage[column.name].notna().any()]
    names = [column for column in shown if column.name != "knowledge"]
    cells: dict[Heading, list[str]] = {}
    rows = worst_first(leakage).head(MOST_ROWS)
    for key in keys:
        numeric = pd.api.types.is_numeric_dtype(leakage[key])
        cells[Heading(short(key), numeric)] = [str(value) for value in rows[key]]
    for column in names:
        cells[Heading(column.heading, column.dtype in NUMERIC, column.meaning)] = [
            _text(column, row) for _, row in rows.iterrows()
        ]
        if any(floor.format(column.name) in leakage for floor in FLOORS):
            better = Heading("(baseline)", True, f"the better of the two uninformed baselines of {column.heading}")
            cells[Heading(f"{column.heading} (baseline)", True, better.meaning)] = [
                _floor(column, row) for _, row in rows.iterrows()
            ]
    cells[Heading("told", meaning="what the attack was granted")] = [
        told(value).removeprefix("told ") for value in rows.knowledge
    ]
    cells[Heading("status")] = [str(value) for value in rows.status]
    cells[Heading("remarks", meaning="the reason, warnings of the attack and notes on the scores")] = [
        value if isinstance(value, str) else "" for value in rows.detail
    ]
    note = (
        f"The {MOST_ROWS} rows that expose most, of {len(leakage)}: the rest is in leakage.csv."
        if len(leakage) > len(rows)
        else ""
    )
    return Grid("All rows of leakage.csv", tuple(cells), tuple(zip(*cells.values(), strict=True)), note)


def _text(column: Column, row: pd.Series) -> str:
    value = row[column.name]
    if column.name in COUNTS and pd.notna(row.get(COUNTS[column.name])):
        return f"{row[COUNTS[column.name]]} of {row['num_private']}"
    if column.name == "client":
        return "all" if value < 0 else str(value)
    if pd.isna(value):
        return ""
    return f"{value:.{column.digits}f}" if column.dtype == NUMBER else str(value)


def _floor(column: Column, row: pd.Series) -> str:
    known = [row.get(floor.format(column.name)) for floor in FLOORS]
    values = [float(value) for value in known if pd.notna(value)]
    return f"{column.better(values):.{column.digits}f}" if values else ""


def exposure_grid(leakage: pd.DataFrame) -> Grid:
    """For each threat model the attack that takes most, what it was told, and how much that is."""
    rows = exposure_rows(leakage)
    good = rows[rows.status == "ok"]
    lines = []
    for threat_model, own in good.groupby("threat_model", sort=False):
        worst = worst_of(own)
        number = worst.num_private if worst.scored else worst.num_inferred
        of = "" if pd.isna(number) else f" of {number:.0f}"
        where = f"{who(int(worst.client))}, round {worst['round']}" + (f", {worst.setting}" if worst.setting else "")
        auc = own.membership_auc.max()
        known = told(worst.knowledge)
        lines.append(
            (viewer(str(threat_model)), SEES.get(str(threat_model), ""), str(worst.attack), known.removeprefix("told "),
             f"{worst.best:.0f}{of}", where, "" if pd.isna(auc) else f"{auc:.2f}")
        )  # fmt: skip
    columns = ("who", "sees", "attack", "told", "images at worst", "of whom", "membership AUC")
    numeric = {"images at worst", "membership AUC"}
    return Grid(
        "Who can do it, and knowing what", tuple(Heading(name, name in numeric) for name in columns), tuple(lines)
    )


def utility_grid(utility: pd.DataFrame, leakage: pd.DataFrame) -> Grid:
    """What the model is worth under each setting, and what leaks there: means over seeds, the most over updates."""
    rows = exposure_rows(leakage)
    keys = [name for name in settings_of(rows) if name != "seed" and name in utility] or ["defense"]
    last, first = utility["round"].max(), utility["round"].min()
    views = list(dict.fromkeys(rows.threat_model))
    lines = []
    for values, own in utility.groupby(keys, sort=False, dropna=False):
        attacked = rows[(rows[keys] == list(values)).all(axis=1) & (rows.status == "ok")]
        at = [own[own["round"] == number].test_accuracy.mean() for number in (first, last)]
        worst = [attacked[attacked.threat_model == view].share.max() for view in views]
        epsilon = own[own["round"] == last].epsilon.max()
        lines.append((*map(str, values), *(_share(one) for one in at), *("" if pd.isna(one) else percent(one) for one in worst),
                      "" if pd.isna(epsilon) else f"{epsilon:.1f}"))  # fmt: skip
    columns = (*(Heading(short(key)) for key in keys),
               *(Heading(f"accuracy after round {number}", True) for number in (first, last)),
               *(Heading(f"taken at worst by {viewer(view).partition(' (')[0]}", True) for view in views),
               Heading("ε", True))  # fmt: skip
    used = [index for index in range(len(columns)) if any(line[index] not in ("", "none") for line in lines)]
    return Grid(
        "Utility and defenses", tuple(columns[index] for index in used),
        tuple(tuple(line[index] for index in used) for line in lines),
        "Accuracy on test images, a mean over seeds; taken: the largest share of a client's images that any attack has.",
    )  # fmt: skip


def _share(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f}"


def legend_of(grid: Grid) -> tuple[tuple[str, str], ...]:
    """What the columns mean that are not plain."""
    return tuple(
        (column.name, f"{column.meaning[:1].upper()}{column.meaning[1:]}.") for column in grid.columns if column.meaning
    )
