"""Tables of a page: every row of the leakage table, who can do what, and what the model is worth."""

from dataclasses import replace

import numpy as np
import pandas as pd

from simulator.reports.drawing import UNDEFENDED, short, swept_keys
from simulator.reports.page.view import Grid, Heading
from simulator.reports.strips import who
from simulator.reports.tables import LEAKAGE_CELLS
from simulator.reports.verdict_words import at_worst, sentence, told, viewer
from simulator.results.columns import COUNT, FLOORS, INTEGER, NUMBER, Column, better_floor
from simulator.results.schema import LEAKAGE
from simulator.rundir.exposure_rows import exposure_rows, settings_of, worst_first, worst_of

MOST_ROWS = 2000
LONGEST_REMARK = 140  # letters
SEES = {
    "server": "the update of each client (of all clients together under secure aggregation)",
    "observer": "the global model before and after a round, as any participant does",
    "history": "all rounds so far",
    "server_history": "the updates of all rounds so far",
}
NUMERIC = (INTEGER, COUNT, NUMBER)
OF_ALL = ("recovered", "recognized", "held", "recovered_affine", "recovered_group")  # counts of the private images


def leakage_grid(leakage: pd.DataFrame) -> Grid:
    """Every row, those that expose most first, each score beside its floor."""
    candidates = ("defense", "seed", "target", *swept_keys(leakage))
    keys = [name for name in candidates if leakage[name].nunique(dropna=False) > 1]
    shown = [column for column in LEAKAGE.printed if column.name in leakage and leakage[column.name].notna().any()]
    rows = worst_first(leakage).head(MOST_ROWS)
    cells: dict[Heading, list[str]] = {}
    for key in keys:
        cells[Heading(short(key), pd.api.types.is_numeric_dtype(leakage[key]))] = [str(value) for value in rows[key]]
    if leakage.recovered.isna().all():  # nobody knows the true images
        cells[Heading("found", meaning="images that the attack returned; doubtful where they explain little")] = [
            LEAKAGE_CELLS["recovered"](row) for _, row in rows.iterrows()
        ]
    for column in shown:
        if column.name == "knowledge":
            continue
        heading = Heading(column.heading, column.dtype in NUMERIC, column.meaning)
        cells[heading] = [_text(column, row) for _, row in rows.iterrows()]
        if any(name.format(column.name) in leakage for name in FLOORS):
            floor = Heading(f"{column.heading} (floor)", True, "the floor: what an attacker who knows nothing scores")
            cells[floor] = [_floor(column, row) for _, row in rows.iterrows()]
    told_column = Heading("told", meaning="what the attack was granted beyond the checkpoints")
    cells[told_column] = [_told(value) for value in rows.knowledge]
    cells[Heading("status")] = [str(value) for value in rows.status]
    remarks = Heading("remarks", meaning="the reason, warnings of the attack and notes on the scores")
    cells[remarks] = [_cut(value) if isinstance(value, str) else "" for value in rows.detail]
    some = f"The {MOST_ROWS} rows that expose most, of {len(leakage)}: the rest is in leakage.csv."
    note = some if len(leakage) > len(rows) else ""
    return Grid("All rows of leakage.csv", tuple(cells), tuple(zip(*cells.values(), strict=True)), note)


def _told(knowledge: object) -> str:
    """What an attack was granted, without a word on who knows it anyway."""
    return told(knowledge).removeprefix("told ").partition(", which")[0]


def _cut(remark: str) -> str:
    """Rows stay low: the page says every kind of remark in full above."""
    return remark if len(remark) <= LONGEST_REMARK else f"{remark[:LONGEST_REMARK].rstrip()} …"


def _text(column: Column, row: pd.Series) -> str:
    value = row[column.name]
    if column.name == "client":
        return "all" if value < 0 else str(value)
    if pd.isna(value):
        return ""
    if column.name == "membership_told":
        return f"{value:.0f} of {row['membership_candidates']:.0f}"
    if column.name in OF_ALL:
        return f"{value} of {row['num_private']}"
    return f"{value:.{column.digits}f}" if column.dtype == NUMBER else str(value)


def _floor(column: Column, row: pd.Series) -> str:
    floor = better_floor(row, column)
    return "" if np.isnan(floor) else f"{floor:.{column.digits}f}"


def exposure_grid(leakage: pd.DataFrame) -> Grid:
    """For each threat model the attack that takes most, what it was told, and how much that is."""
    rows = exposure_rows(leakage)
    good = rows[rows.status == "ok"]
    lines = []
    for threat_model, own in good.groupby("threat_model", sort=False):
        worst = worst_of(own)
        where = f"{who(int(worst.client))}, round {worst['round']}" + (f", {worst.setting}" if worst.setting else "")
        auc = own.membership_auc.max()
        known = told(worst.knowledge)
        lines.append(
            (viewer(str(threat_model)), SEES.get(str(threat_model), ""), str(worst.attack), known.removeprefix("told "),
             at_worst(worst), where, "" if pd.isna(auc) else f"{auc:.2f}", _most_members(own))
        )  # fmt: skip
    names = ("who", "sees", "attack", "told", "images at worst", "of whom", "membership AUC", "candidates told")
    columns = [Heading(name, name in ("images at worst", "membership AUC", "candidates told")) for name in names]
    return _without_empty(Grid("Who can do it, and knowing what", tuple(columns), tuple(lines)))


def _most_members(rows: pd.DataFrame) -> str:
    """The most candidates that one update tells to be members, of how many."""
    told = rows[rows.membership_told.notna()]
    most = None if told.empty else told.loc[told.membership_told.idxmax()]
    return "" if most is None else f"{most.membership_told:.0f} of {most.membership_candidates:.0f}"


def utility_grid(utility: pd.DataFrame, leakage: pd.DataFrame) -> Grid:
    """What the model is worth under each setting, and what leaks there: means over seeds, the most over updates."""
    rows = exposure_rows(leakage)
    keys = [name for name in settings_of(rows) if name != "seed" and name in utility] or ["defense"]
    last, first = utility["round"].max(), utility["round"].min()
    views = list(dict.fromkeys(rows.threat_model))
    lines = []
    groups = utility.groupby(keys, sort=False, dropna=False)
    for values, own in sorted(groups, key=lambda group: UNDEFENDED not in group[0]):
        attacked = rows[(rows[keys] == list(values)).all(axis=1) & (rows.status == "ok")]
        at = [_number(own[own["round"] == number].test_accuracy.mean(), 2) for number in (first, last)]
        most = [_number(100 * attacked[attacked.threat_model == view].share.max(), 0) for view in views]
        epsilon = _number(own[own["round"] == last].epsilon.max(), 1)
        lines.append((*map(str, values), *at, *(number and f"{number} %" for number in most), epsilon))
    columns = (
        *(Heading(short(key)) for key in keys),
        Heading("accuracy before training" if first == 0 else f"accuracy after round {first}", True),
        Heading(f"accuracy after round {last}", True),
        *(Heading(f"taken at worst by {viewer(view).partition(' (')[0]}", True) for view in views),
        Heading("ε", True),
    )
    note = (
        "Accuracy: on test images, mean over seeds. Taken: the largest share of a client's images that any attack has."
    )
    return _without_empty(Grid("Utility and defenses", columns, tuple(lines), note))


def _without_empty(grid: Grid) -> Grid:
    """Without the columns that say nothing in any row."""
    used = [index for index in range(len(grid.columns)) if any(row[index] not in ("", UNDEFENDED) for row in grid.rows)]
    rows = tuple(tuple(row[index] for index in used) for row in grid.rows)
    return replace(grid, columns=tuple(grid.columns[index] for index in used), rows=rows)


def _number(value: float, digits: int) -> str:
    return "" if pd.isna(value) else f"{value:.{digits}f}"


def legend_of(grid: Grid) -> tuple[tuple[str, str], ...]:
    """What the columns mean that are not plain."""
    return tuple((column.name, sentence(column.meaning)) for column in grid.columns if column.meaning)
