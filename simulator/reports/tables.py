"""Make tables of texts (`Grid`), for a terminal, which cuts no cell off, and for a page.

A page has tables of its own: every row of the leakage table, the worst attack of each threat model, and utility.
"""

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from rich import box
from rich.table import Table

from attacks.interface.errors import InputError
from simulator.reports.benchmark_table import LEAK, NONE, strongest
from simulator.reports.verdict_words import at_worst, told_briefly, viewer
from simulator.results.columns import COUNT, INTEGER, NUMBER, Column
from simulator.results.keys import owner
from simulator.results.schema import EQUAL_UTILITY, LEAKAGE, benchmark
from simulator.rundir.exposure_rows import are_told, exposure_rows, settings_of, swept_keys, worst_first, worst_of
from simulator.rundir.run import Run
from simulator.scenario.sweep import short_keys

NUMERIC = (INTEGER, COUNT, NUMBER)
FOLDED = 8, 12  # letters that a column of text has at least: as many as its longest word, between these
CLOSER = 10  # columns whose `spare` is less are left out before columns stand closer, the others after
SETTING = "setting"
NOTHING = ("", NONE)  # what tells a reader of a page nothing
FLOOR = (
    "In parentheses: the floor, what an attacker who knows nothing scores (the better of as many public images and of "
    "their mean)."
)
FOUND = (
    "found: images that explain so much of the update that they are very likely right (how much, says "
    "docs/howto/audit_in_full.md); held: images that the attack has and is not sure of; doubtful: all others. Nobody "
    "compared them with the truth."
)
BENCHMARK_LEGEND = (
    "recovered: of private images, by the attack that has most in the last attacked round (*: told the "
    "defense in force), with the 95 % interval over clients within seeds; has: all that it has, with what it held back "
    "and what an eye would know. accuracy: after that round, with the 95 % interval over seeds; ε: "
    "by then, against the row's threat model, of one record (r) or a whole client (c). kB: what a client sends in a "
    "round."
)


@dataclass(frozen=True)
class Heading:
    """The heading of a column.

    name: its text.
    numeric: whether its cells stand right and sort by number.
    meaning: in a sentence.
    spare: as of `Column`.
    key: whether it tells points of a sweep, or defenses, from each other.
    """

    name: str
    numeric: bool = False
    meaning: str = ""
    spare: int = 0
    key: bool = False


@dataclass(frozen=True)
class Grid:
    """A table.

    title: for readers who cannot see it.
    columns: its headings.
    rows: texts, a cell for each column.
    note: what is left out.
    """

    title: str
    columns: tuple[Heading, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def cells(self) -> dict[str, list[str]]:
        """Return the cells of each column, by its heading."""
        return {column.name: [row[i] for row in self.rows] for i, column in enumerate(self.columns)}


def grid(title: str, cells: dict[Heading, list[str]], note: str = "", empty: Collection[str] = ("",)) -> Grid:
    """Make a table of columns; leave out those in which every text is one of `empty`."""
    used = {heading: texts for heading, texts in cells.items() if not set(texts) <= set(empty)}
    return Grid(title, tuple(used), tuple(zip(*used.values(), strict=True)), note)


def cells_of(frame: pd.DataFrame, columns: Iterable[Column]) -> dict[Heading, list[str]]:
    """Return the cells of those columns that a table has."""
    rows = [row for _, row in frame.iterrows()]
    return {
        Heading(column.heading, column.dtype in NUMERIC, column.meaning, column.spare): list(map(column.cell, rows))
        for column in columns if column.name in frame
    }  # fmt: skip


def key_cells(frame: pd.DataFrame) -> dict[Heading, list[str]]:
    """Return the columns that tell rows of one round, client, threat model and attack apart."""
    names = ("defense", "seed", "target", *swept_keys(frame))
    keys = [name for name in names if name in frame and frame[name].nunique(dropna=False) > 1]
    return {
        Heading(short, pd.api.types.is_numeric_dtype(frame[name]), key=True): [str(value) for value in frame[name]]
        for name, short in short_keys(keys).items()
    }


def worth_showing(frame: pd.DataFrame) -> list[Column]:
    """Return the columns of the leakage table that tell something: not the attack if there is a single one, nor counts
    that all equal `recovered`."""
    return [column for column in LEAKAGE.printed if column.name in frame and _differs(frame, column)]


def _differs(frame: pd.DataFrame, column: Column) -> bool:
    if column.name == "attack":
        return frame.attack.nunique() > 1
    if column.name == "recovered" or not (column.counts or column.name == "precision"):
        return True
    than = 1 if column.name == "precision" else frame.recovered
    return bool((frame[column.name].notna() & (frame[column.name] != than)).any())


def in_letters(table: Grid, width: int) -> Table:
    """Make a table of at most `width` letters. Keys share a column; columns that tell least go if there is no room."""
    keys = [column.name for column in table.columns if column.key]
    cells = table.cells()
    columns = [column for column in table.columns if not column.key]
    if keys:
        named = ("defense", "target")
        rows = zip(*(cells[key] for key in keys), strict=True)
        cells[SETTING] = [
            ", ".join(one if key in named else f"{key}={one}" for key, one in zip(keys, row, strict=True))
            for row in rows
        ]
        columns.append(Heading(SETTING))
    widths, gap = _fitted(columns, cells, width)
    shown = Table(title=table.title, title_justify="left", box=box.SIMPLE, padding=(0, gap - 1, 0, 0), pad_edge=False,
                  show_edge=False, caption=table.note or None)  # fmt: skip
    numeric = {column.name: column.numeric for column in columns}
    for name, size in widths.items():
        shown.add_column(name, justify="right" if numeric[name] else "left", overflow="fold", width=size)
    for line in zip(*(cells[name] for name in widths), strict=True):
        shown.add_row(*(_broken(cell, size) for cell, size in zip(line, widths.values(), strict=True)))
    return shown


def _broken(cell: str, width: int) -> str:
    """Break words that are wider than a column behind an underscore."""
    return re.sub(rf"(?<!\S)(?=\S{{{width + 1}}})(\S{{1,{width - 1}}}_)", "\\1\n", cell)


def _fitted(columns: Sequence[Heading], cells: dict[str, list[str]], width: int) -> tuple[dict[str, int], int]:
    """Return (the width of each column, the spaces between them)."""
    letters = {column.name: max(map(len, [column.name, *cells[column.name]])) for column in columns}
    names = [column.name for column in columns if not column.numeric]
    parts = {name: max((len(part) for cell in cells[name] for part in re.split(r"(?<=_)|\s", cell)), default=0)
             for name in names}  # fmt: skip
    least = {name: min(letters[name], max(FOLDED[0], min(parts[name], FOLDED[1]))) for name in names}
    spare = sorted((column for column in columns if column.spare), key=lambda column: column.spare)
    gap = 2

    def missing(asked: dict[str, int]) -> int:
        return sum(asked.values()) + gap * (len(asked) - 1) - width

    def leave_out(names: Sequence[Heading], asked: dict[str, int]) -> None:
        for column in names:
            if missing(letters | asked) > 0:
                letters.pop(column.name)

    leave_out([column for column in spare if column.spare < CLOSER], {})
    gap = 1 if missing(letters) > 0 else gap
    leave_out([column for column in spare if column.spare >= CLOSER], least)
    for name in sorted(least, key=lambda name: sum(len(cell) > least[name] for cell in cells[name])):
        letters[name] = max(least[name], letters[name] - max(0, missing(letters)))  # fewest broken cells first
    return letters, gap


def is_blind(leakage: pd.DataFrame) -> bool:
    """Return whether there are results, and none of them was compared with the true images."""
    return bool(leakage.recovered.isna().all() and (leakage.status == "ok").any())


def legend(headings: Iterable[str], blind: bool = False) -> str:
    """Explain the columns of a leakage table that have a legend. blind: of `is_blind`."""
    shown = set(headings)
    columns = [column for column in LEAKAGE.printed if column.legend and column.heading in shown]
    said = {column.name: f"{column.heading}: {column.legend}" for column in columns}
    said |= {"recovered": FOUND} if blind and "recovered" in said else {}
    return " ".join([*said.values(), *([FLOOR] if "leakage" in shown else [])])


HAS = replace(benchmark().columns["held_fraction"], name=LEAK, title="has", meaning="all that the attack has")


def defenses_grid(table: pd.DataFrame, *more: Column) -> Grid:
    """Make a table of the strongest attack and the costs for every defense and threat model. more: columns beside."""
    rows = strongest(table)
    rows = rows.assign(attack=rows.attack + rows.adaptive.map({True: "*", False: ""}))
    columns = [HAS if column.name == "held_fraction" else column for column in benchmark().printed]
    columns = [column for column in columns if column is not HAS or (rows.leak > rows.recovered_fraction).any()]
    return grid("Defenses", cells_of(rows, [*columns, *more]))


def untested(table: pd.DataFrame) -> list[str]:
    """Return a line for each set of attacks without a result, with the defenses whose shares therefore say little."""
    rows = strongest(table).dropna(subset=["not_attacked_by"])
    return [
        f"not attacked by {missing}: {', '.join(own.defense + ' (' + own.threat_model + ')')}"
        for missing, own in rows.groupby("not_attacked_by", sort=False)
    ]


def equal_utility_grid(table: pd.DataFrame) -> Grid:
    """Make a table of the strongest setting and its leak for every swept defense and accepted loss of accuracy."""
    cells = cells_of(table, EQUAL_UTILITY.printed)
    return grid("Equal utility: the strongest setting within a loss of accuracy", cells)


def short(key: str) -> str:
    """Return a setting's own name, without its section: `learning rate`."""
    return key.rpartition(".")[2].replace("_", " ")


MOST_ROWS = 2000
LONGEST_REMARK = 142  # letters, with the sign that it is cut
SEES = {
    "server": "the update of each client (of all clients together under secure aggregation)",
    "observer": "the global model before and after a round, as any participant does",
    "history": "all rounds so far",
    "server_history": "the updates of all rounds so far",
}


def leakage_grid(leakage: pd.DataFrame) -> Grid:
    """Make a table of every row, those that expose most first, with the columns of the terminal and remarks."""
    frame = worst_first(leakage).head(MOST_ROWS)
    cells = key_cells(frame) | cells_of(frame, worth_showing(frame))
    if is_blind(leakage):
        cells = {replace(name, meaning=FOUND) if name.name == "recovered" else name: own for name, own in cells.items()}
    told_column = Heading("told", meaning="what the attack was granted beyond the checkpoints")
    cells[told_column] = [told_briefly(row) for _, row in frame.iterrows()]
    cells[Heading("status")] = [str(value) for value in frame.status]
    remarks = Heading("remarks", meaning="the reason, warnings of the attack and notes on the scores")
    # cut, so that rows stay low: the page has every kind of remark in full above
    cells[remarks] = [textwrap.shorten(remark, LONGEST_REMARK, placeholder=" …") for remark in frame.detail.fillna("")]
    some = f"The {MOST_ROWS} rows that expose most, of {len(leakage)}: the rest is in leakage.csv."
    notes = [FLOOR] * bool(leakage.leakage.notna().any()) + [some] * (len(leakage) > len(frame))
    return grid("All rows of leakage.csv", cells, " ".join(notes))


def exposure_grid(leakage: pd.DataFrame) -> Grid:
    """Make a table with the worst attack of each threat model, its knowledge, and its images."""
    rows = exposure_rows(leakage)
    tested = rows[are_told(rows)]
    lines = []
    for threat_model, own in tested.groupby("threat_model", sort=False):
        worst = worst_of(own)
        auc, told = (_most(own, name, worst) for name in ("membership_auc", "membership_told"))
        lines.append(
            (viewer(str(threat_model)), SEES.get(str(threat_model), ""), str(worst.attack), told_briefly(worst),
             _images(worst), _of_whom(worst), auc, told)
        )  # fmt: skip
    names = ("who", "sees", "attack", "told", "images at worst", "of whom", "membership AUC", "stand out")
    columns = [Heading(name, name in ("images at worst", "membership AUC", "stand out")) for name in names]
    return grid("Who can do it, and knowing what", _by_column(columns, lines), empty=NOTHING)


def _images(worst: pd.Series) -> str:
    if worst.status != "ok":
        return "no result"
    count = f"{worst.num_features:.0f}"
    features = f"; {count} vectors of parts" if worst.num_features > worst.num_private else f"; features of {count}"
    return at_worst(worst) + (features if worst.num_features > worst.best else "")


def _most(own: pd.DataFrame, name: str, worst: pd.Series) -> str:
    """Return the largest value of a column, and whose it is if it is of another update than `worst`. Of equal values
    that of `worst` counts."""
    if own[name].isna().all():
        return ""
    most = own.loc[own[name].idxmax()]
    most = worst if worst[name] == most[name] else most
    cell = LEAKAGE.columns[name].cell(most)
    same = all(most[key] == worst[key] for key in ("client", "round", "setting"))
    return cell if same else f"{cell} ({_of_whom(most)})"


def _of_whom(row: pd.Series) -> str:
    return f"{owner(int(row.client))}, round {row['round']}" + (f", {row.setting}" if row.setting else "")


def utility_of(run: Run) -> Grid | None:
    """Make the table of utility; None if it was not measured, as in an audit."""
    try:
        return utility_grid(run.utility, run.leakage)
    except InputError:
        return None


def utility_grid(utility: pd.DataFrame, leakage: pd.DataFrame) -> Grid:
    """Make a table of utility (mean over seeds) and leakage (maximum over updates) by setting."""
    rows = exposure_rows(leakage)
    keys = [name for name in settings_of(rows) if name != "seed" and name in utility] or ["defense"]
    last, first = utility["round"].max(), utility["round"].min()
    views = list(dict.fromkeys(rows.threat_model))
    lines = []
    groups = utility.groupby(keys, sort=False, dropna=False)
    for values, own in sorted(groups, key=lambda group: NONE not in group[0]):
        attacked = rows[(rows[keys] == list(values)).all(axis=1) & (rows.status == "ok")]
        at = [_number(own[own["round"] == number].test_accuracy.mean(), 2) for number in (first, last)]
        most = [_number(100 * attacked[attacked.threat_model == view].share.max(), 0) for view in views]
        epsilon = _number(own[own["round"] == last].epsilon.max(), 1)
        lines.append((*map(str, values), *at, *(number and f"{number} %" for number in most), epsilon))
    columns = [
        *(Heading(short(key)) for key in keys),
        Heading("untrained" if first == 0 else f"round {first}", True),
        Heading("accuracy", True),
        *(Heading(f"taken by {view}", True) for view in views),
        Heading("ε", True),
    ]
    taken = " Taken: the largest share of a client's images that any attack has." if (rows.status == "ok").any() else ""
    note = f"Accuracy: on test images after round {last}, mean over seeds.{taken}"
    return grid("Utility and defenses", _by_column(columns, lines), note, empty=NOTHING)


def _by_column(columns: Sequence[Heading], lines: Sequence[tuple[str, ...]]) -> dict[Heading, list[str]]:
    return dict(zip(columns, map(list, zip(*lines, strict=True)), strict=False))  # no column where there is no line


def _number(value: float, digits: int) -> str:
    return "" if pd.isna(value) else f"{value:.{digits}f}"
