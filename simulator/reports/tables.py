"""Tables for terminals and logs that are as wide as they may be, with every cell whole.

The leakage table as a person reads it: scores rounded, each with its floor in parentheses.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from simulator.reports.benchmark_table import strongest
from simulator.results.columns import NUMBER, TEXT, Column, better_floor
from simulator.results.schema import EQUAL_UTILITY, LEAKAGE, benchmark
from simulator.rundir.exposure_rows import EXPLAINED, TESTED, likely_right
from simulator.scenario.sweep import short_keys

FOLDED = 8  # letters that a column of text has at least


@dataclass(frozen=True)
class Layout:
    """How columns give way where there is no room for all, by heading.

    texts: columns that may be folded over several lines; all others are numbers. spare, dropped: columns that are left
    out, in this order: `spare` before the columns stand closer, `dropped` after.
    """

    texts: Collection[str]
    spare: Sequence[str] = ()
    dropped: Sequence[str] = ()

    def fitted(self, width: int, columns: dict[str, list[str]]) -> tuple[dict[str, int], int]:
        """(how wide each column is to be, spaces between them). columns: the cells of each."""
        letters = {name: max(map(len, [name, *cells])) for name, cells in columns.items()}
        least = {name: min(size, FOLDED) for name, size in letters.items() if name in self.texts}
        gap = 2

        def missing(asked: dict[str, int]) -> int:
            return sum(asked.values()) + gap * (len(asked) - 1) - width

        def leave_out(names: Sequence[str], asked: dict[str, int]) -> None:
            for name in names:
                if missing(letters | asked) > 0:
                    letters.pop(name, None)

        leave_out(self.spare, {})
        gap = 1 if missing(letters) > 0 else gap
        leave_out(self.dropped, least)
        for name in sorted(least, key=lambda name: sum(len(cell) > FOLDED for cell in columns[name])):
            letters[name] = max(least[name], letters[name] - max(0, missing(letters)))  # fewest broken cells first
        return letters, gap


def text_table(title: str, columns: dict[str, list[str]], width: int, layout: Layout) -> Table:
    """A table of `width` letters at most. columns: the cells of each column, by its heading."""
    widths, gap = layout.fitted(width, columns)
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, gap - 1, 0, 0), pad_edge=False,
                  show_edge=False)  # fmt: skip
    for name, size in widths.items():
        table.add_column(name, justify="left" if name in layout.texts else "right", overflow="fold", width=size)
    for line in zip(*(columns[name] for name in widths), strict=True):
        table.add_row(*line)
    return table


FLOOR = (
    "In parentheses: the floor, what an attacker who knows nothing scores (the better of as many public images and of "
    "their mean)."
)
LEGEND = {  # by heading
    "leakage": "leakage: 1 is exact.",
    "recovered": "recovered: PSNR of at least 20 dB and nearer to its private image than to any other of the pool.",
    "AUC": "AUC: how well the update tells private images from public ones (0.5: not at all).",
    "members": "members: of the candidates, told to have taken part, at the false-positive rate of the verdict.",
}
FOUND = (
    f"found: images that leave less than {EXPLAINED:.0%} of the update unexplained, or less than {TESTED:.0%} where "
    "they passed the attack's own test against decoys; doubtful: others. Nobody compared them with the truth."
)
MORE = {  # what is shown where it differs from `recovered`, by heading
    "recognized": "recognized: recovered, or alike up to what an eye overlooks (docs/scores.md).",
    "held": "held: recovered by any candidate that the attack has, returned or not.",
    "affine": "affine: recovered up to an offset and a gain per channel.",
    "group": "group: recovered up to the clients' augmentations.",
    "precision": "precision: share of the returned images that recover one.",
}
LONGEST_REMARK = 300  # letters
BENCHMARK_LEGEND = (
    "recovered: of private images, by the attack that recovers most in the last attacked round (*: granted the "
    "defense in force), with the 95 % interval over clients within seeds; held: with the candidates that an attack "
    "would not return, of the one that holds most. accuracy: after that round, with the 95 % interval over seeds; ε: "
    "by then, against the row's threat model, of one record (r) or a whole client (c). kB: what a client sends in a "
    "round."
)
Show = Callable[[pd.Series], str]


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
    told = {text for text in _texts(frame, _granted) if text}  # by name: true values differ anyway
    same = {"attack": frame.attack.nunique() < 2, "knowledge": len(told) < 2} | {
        column.name: not _differs(frame, column.name) for column in LEAKAGE.printed if column.heading in MORE
    }
    scores = [column.name for column in LEAKAGE.printed if column.dtype == NUMBER or column.name == "membership_told"]
    same |= {name: name not in frame or bool(frame[name].isna().all()) for name in scores if not same.get(name)}
    columns = [column for column in LEAKAGE.printed if not same.get(column.name)]
    return first | {column.heading: LEAKAGE_CELLS.get(column.name, _beside_floor(column)) for column in columns}


def legend(headings: Iterable[str], blind: bool = False) -> str:
    """What the columns of a table mean, as far as that needs saying. blind: whether nobody knows the true images."""
    shown = list(headings)
    said = [FOUND if blind and heading == "recovered" else LEGEND[heading] for heading in LEGEND if heading in shown]
    floor = [FLOOR] if "leakage" in shown else []
    return " ".join([*said, *floor, *(MORE[heading] for heading in shown if heading in MORE)])


def remarks(frame: pd.DataFrame, most: int | None = None) -> list[str]:
    """What `detail` says, once for all rows that say it with other numbers; first of those without a result.

    most: lines; the last one says how much more there is.
    """
    found: dict[str, tuple[str, int]] = {}
    for _, row in frame.sort_values("status", key=lambda status: status == "ok", kind="stable").iterrows():
        detail, good = row["detail"] if isinstance(row["detail"], str) else "", row["status"] == "ok"
        for text in detail.split("; ") if good else [f"{row['status']}: {detail}"]:
            kind = re.sub(r"[\d.]+", "#", text)
            first, count = found.get(kind, (text, 0))
            found[kind] = (first, count + 1)
    said = [
        f"{count} row{'s' * (count > 1)}: {text if len(text) <= LONGEST_REMARK else text[:LONGEST_REMARK] + ' …'}"
        for text, count in found.values()
        if text
    ]
    if most is None or len(said) <= most:
        return said
    return [*said[: most - 1], f"{len(said) - most + 1} more remarks: column `detail` of leakage.csv"]


def _texts(frame: pd.DataFrame, show: Show) -> list[str]:
    return [show(row) for _, row in frame.iterrows()]


def _differs(frame: pd.DataFrame, name: str) -> bool:
    """Whether a score says in any row what `recovered` does not; older runs have none of these."""
    if name not in frame:
        return False
    than = 1 if name == "precision" else frame.recovered
    return bool((frame[name].notna() & (frame[name] != than)).any())


def benchmark_view(table: pd.DataFrame, width: int = 80) -> Table:
    """For every defense and threat model the strongest attack, and what the defense costs, in `width` letters."""
    rows = strongest(table)
    columns = [column for column in benchmark().printed if column.name != "held_fraction" or _more_is_held(rows)]
    return _view("Defenses", rows, columns, BENCHMARK_CELLS, width)


def untested(table: pd.DataFrame) -> list[str]:
    """A line for the defenses on which the same attacks gave no result: their shares say little."""
    rows = strongest(table).dropna(subset=["not_attacked_by"])
    return [
        f"not attacked by {missing}: {', '.join(own.defense + ' (' + own.threat_model + ')')}"
        for missing, own in rows.groupby("not_attacked_by", sort=False)
    ]


def equal_utility_view(table: pd.DataFrame, width: int = 80) -> Table:
    """For every swept defense and accepted loss of accuracy the strongest setting, and what it lets through."""
    shown = {"recovered_fraction": _clustered("recovered_fraction"), "epsilon": _epsilon, "setting": _setting}
    title = "Equal utility: the strongest setting within a loss of accuracy"
    return _view(title, table, EQUAL_UTILITY.printed, shown, width)


def _view(title: str, rows: pd.DataFrame, columns: list[Column], shown: dict[str, Show], width: int) -> Table:
    """The rows in a table. shown: how cells look that are more than a value."""
    texts = {column.heading: _texts(rows, shown.get(column.name, _plain(column))) for column in columns}
    layout = Layout({column.heading for column in columns if column.dtype == TEXT}, dropped=("kB", "bound", "held"))
    return text_table(title, texts, width, layout)


def _number(value: float, digits: int) -> str:
    return "" if pd.isna(value) else f"{value:.{digits}f}"


def _plain(column: Column) -> Show:
    """Numbers rounded, all else as it is."""
    name, digits, is_number = column.name, column.digits, column.dtype == NUMBER
    return lambda row: _number(row[name], digits) if is_number else str(row[name])


def _beside_floor(column: Column) -> Show:
    """With the floor in parentheses where the score has one."""

    def text(row: pd.Series) -> str:
        shown, floor = _plain(column)(row), better_floor(row, column)
        return f"{shown} ({_number(floor, column.digits)})" if shown and not np.isnan(floor) else shown

    return text


def _recovered(row: pd.Series) -> str:
    if row["status"] == "ok" and pd.isna(row["recovered"]):  # nobody knows the true images
        likely = likely_right(row.to_frame().T.infer_objects()).iloc[0]
        return f"{row['num_reconstructed']} {'found' if likely else 'doubtful'}"
    return f"{row['recovered']} of {row['num_private']}" if row["status"] == "ok" else str(row["status"])


def _count(name: str) -> Show:
    return lambda row: "" if pd.isna(row[name]) else str(int(row[name]))


def _members(row: pd.Series) -> str:
    """Of the candidates of an audit."""
    told = row.get("membership_told")
    return "" if pd.isna(told) else f"{told:.0f} of {row['membership_candidates']:.0f}"


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


def _setting(row: pd.Series) -> str:
    return row["setting"] if isinstance(row["setting"], str) else "none costs so little"


def _epsilon(row: pd.Series) -> str:
    """With the first letter of what it hides: one record, or a whole client."""
    return "" if pd.isna(row["epsilon"]) else f"{row['epsilon']:.1f} {str(row.get('privacy_unit', ''))[:1]}"


LEAKAGE_CELLS: dict[str, Show] = {  # what is more than a value and its floor
    "client": lambda row: "all" if row["client"] < 0 else str(row["client"]),
    "recovered": _recovered,
    "membership_told": _members,
    "knowledge": _granted,
    **{name: _count(name) for name in ("recognized", "held", "recovered_affine", "recovered_group")},
}
BENCHMARK_CELLS: dict[str, Show] = {
    "attack": lambda row: f"{row['attack']}*" if row["adaptive"] else row["attack"],
    "recovered_fraction": _clustered("recovered_fraction"),
    "test_accuracy": _clustered("test_accuracy"),
    "epsilon": _epsilon,
    "bytes": lambda row: _number(row["bytes"] / 1000, 0),
}
