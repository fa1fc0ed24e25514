"""Tables of a page: every row of the leakage table, the worst attack of each threat model, and utility."""

from dataclasses import replace

import pandas as pd

from simulator.reports.drawing import UNDEFENDED, short, swept_keys
from simulator.reports.tables import FLOOR, FOUND, Grid, Heading, cells_of, grid, key_cells
from simulator.reports.verdict_words import at_worst, told, viewer
from simulator.results.keys import owner
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


def leakage_grid(leakage: pd.DataFrame) -> Grid:
    """Make a table of every row, those that expose most first, with the columns of the terminal and remarks."""
    frame = worst_first(leakage).head(MOST_ROWS)
    cells = key_cells(frame, swept_keys(leakage)) | cells_of(frame, LEAKAGE.printed)
    if leakage.recovered.isna().all():  # nobody knows the true images
        cells = {replace(name, meaning=FOUND) if name.name == "recovered" else name: own for name, own in cells.items()}
    told_column = Heading("told", meaning="what the attack was granted beyond the checkpoints")
    cells[told_column] = [told(value).removeprefix("told ").partition(", which")[0] for value in frame.knowledge]
    cells[Heading("status")] = [str(value) for value in frame.status]
    remarks = Heading("remarks", meaning="the reason, warnings of the attack and notes on the scores")
    cells[remarks] = [_cut(value) if isinstance(value, str) else "" for value in frame.detail]
    some = f"The {MOST_ROWS} rows that expose most, of {len(leakage)}: the rest is in leakage.csv."
    notes = [FLOOR] * bool(leakage.leakage.notna().any()) + [some] * (len(leakage) > len(frame))
    return grid("All rows of leakage.csv", cells, " ".join(notes))


def _cut(remark: str) -> str:
    """Cut a remark, so that rows stay low: the page has every kind of remark in full above."""
    return remark if len(remark) <= LONGEST_REMARK else f"{remark[:LONGEST_REMARK].rstrip()} …"


def exposure_grid(leakage: pd.DataFrame) -> Grid:
    """Make a table with the worst attack of each threat model, its knowledge, and its images."""
    rows = exposure_rows(leakage)
    good = rows[rows.status == "ok"]
    lines = []
    for threat_model, own in good.groupby("threat_model", sort=False):
        worst = worst_of(own)
        where = f"{owner(int(worst.client))}, round {worst['round']}" + (f", {worst.setting}" if worst.setting else "")
        known, members = told(worst.knowledge).removeprefix("told "), own[own.membership_told.notna()]
        most = members.loc[members.membership_told.idxmax()] if len(members) else None
        lines.append(
            (viewer(str(threat_model)), SEES.get(str(threat_model), ""), str(worst.attack), known, at_worst(worst),
             where, _number(own.membership_auc.max(), 2),
             "" if most is None else f"{most.membership_told:.0f} of {most.membership_candidates:.0f}")
        )  # fmt: skip
    names = ("who", "sees", "attack", "told", "images at worst", "of whom", "membership AUC", "candidates told")
    columns = [Heading(name, name in ("images at worst", "membership AUC", "candidates told")) for name in names]
    return _without_empty(Grid("Who can do it, and knowing what", tuple(columns), tuple(lines)))


def utility_grid(utility: pd.DataFrame, leakage: pd.DataFrame) -> Grid:
    """Make a table of utility and leaks under each setting: means over seeds, the most over updates."""
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


def _without_empty(table: Grid) -> Grid:
    """Remove the columns that are empty or "none" in every row."""
    says = {column: texts for column, texts in zip(table.columns, zip(*table.rows, strict=True), strict=False)}
    used = {column: list(texts) for column, texts in says.items() if set(texts) - {"", UNDEFENDED}}
    return grid(table.title, used, table.note)


def _number(value: float, digits: int) -> str:
    return "" if pd.isna(value) else f"{value:.{digits}f}"
