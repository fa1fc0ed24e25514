"""Tables and columns: their type, meaning, the place where they are computed, and the text of their cells."""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

INTEGER, COUNT, NUMBER, FLAG, TEXT = "int64", "Int64", "float64", "bool", "str"  # COUNT: an integer that may be missing
DECIBEL, L2, SHARE, SECONDS, JSON = "dB", "L2", "0 to 1", "seconds", "JSON"  # units


class SchemaError(ValueError):
    """A table has a column that is not declared."""


@dataclass(frozen=True)
class Group:
    """Columns that docs/reference/tables.md describes together.

    source: the file or folder that computes them.
    """

    intro: str
    source: str


def is_number(value: Any) -> bool:
    """Return whether a value fits a float, Inf and NaN among them: not an integer of 400 digits, and not a flag."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


class Counts(NamedTuple):
    """Marks a column that counts private images which an attacker has: a verdict takes the column that counts most.

    rank: of equally many images, the lowest counts.
    how: how an image counts that `recovered` leaves out.
    strictly: what `recovered` asks of it.
    """

    rank: int
    how: str = ""
    strictly: str = "as they are"


@dataclass(frozen=True)
class Column:
    """One column of a table. The tables say which columns they print.

    dtype: how pandas stores it.
    title: how a printed table calls it, where not by its name.
    digits: to which a printed table rounds it.
    averaged: whether benchmark.csv has its mean over seeds.
    text: makes the text of a cell that is more than the value.
    legend: a sentence that the terminal prints below a table with this column.
    counts: given if it counts private images.
    spare: order in which columns are left out if a terminal is too narrow, 0 for never; those below 10 go before all
        columns stand closer, the others after.
    """

    name: str
    dtype: str
    meaning: str
    group: Group
    unit: str = ""
    title: str = ""
    digits: int = 2
    averaged: bool = False
    text: "Callable[[pd.Series, Column], str] | None" = None
    legend: str = ""
    counts: Counts | None = None
    spare: int = 0

    @property
    def heading(self) -> str:
        return self.title or self.name

    def cell(self, row: "pd.Series") -> str:
        """Return the text of a row in a printed table."""
        return self.plain(row) if self.text is None else self.text(row, self)

    def plain(self, row: "pd.Series") -> str:
        """Return the value as text, numbers rounded."""
        value = row[self.name]
        if is_missing(value) or self.dtype not in (NUMBER, COUNT):
            return "" if is_missing(value) else str(value)
        return f"{value:.{self.digits if self.dtype == NUMBER else 0}f}"

    def holds(self, value: Any) -> bool:
        """Return whether a value can be written as this column's type; a missing value can."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return True
        if self.dtype in (FLAG, TEXT):
            return isinstance(value, bool if self.dtype == FLAG else str)
        return is_number(value) and (self.dtype == NUMBER or (abs(value) < 2**53 and value == int(value)))


class Table:
    """The columns of one kind of file, by name and in their order."""

    def __init__(self, files: str, intro: str, *columns: Column, printed: str = ""):
        """printed: names of the columns that the terminal shows."""
        self.files, self.intro = files, intro
        self.name = files.partition(".")[0]  # of its first file, without the ending
        self.columns = {column.name: column for column in columns}
        self.printed = [self.columns[name] for name in printed.split()]
        self.numeric = [column.name for column in columns if column.dtype in (COUNT, NUMBER)]

    def check(self, names: Iterable[str], swept: Iterable[str] = ()) -> None:
        """Raise SchemaError if one of `names` is neither a column of this table nor a key that a sweep moves."""
        for name in names:
            if name not in self.columns and name not in swept:
                raise SchemaError(
                    f"table {self.name!r} has no column {name!r}: declare it in simulator/results/schema.py"
                )

    def plain(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row in Python's own values. A value that does not fit its column is left out, and `detail` says so:
        clients, attacks and measures are other people's code, and one value must not cost a table."""
        row = {  # NumPy's scalars as Python's own
            name: value.item() if type(value).__module__ == "numpy" and not getattr(value, "shape", True) else value
            for name, value in row.items()
        }
        wrong = [name for name, value in row.items() if name in self.columns and not self.columns[name].holds(value)]
        said = [f"{name} = {str(row[name])[:40]!r} is no value of that column" for name in wrong]
        row |= dict.fromkeys(wrong)
        if said and "detail" in self.columns:
            row["detail"] = "; ".join(filter(None, [row.get("detail"), *said]))
        return row

    def frame(self, rows: Sequence[dict[str, Any]] | dict[str, Any], swept: Iterable[str] = ()) -> "pd.DataFrame":
        """Make a DataFrame of rows, or of columns by name, in the table's order and types; those of a sweep follow."""
        import pandas as pd  # a third of a second of every worker of a run

        frame = pd.DataFrame(rows)
        self.check(frame.columns, swept)
        extra = [name for name in frame.columns if name not in self.columns]
        frame = frame.reindex(columns=[*self.columns, *extra])
        for column in self.columns.values():
            if column.dtype == COUNT:
                frame[column.name] = pd.array(pd.to_numeric(frame[column.name]), dtype=COUNT)
        return frame


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN or pandas' NA."""
    import pandas as pd  # as above

    return bool(pd.isna(value))


def leakage_floors(rows: "pd.DataFrame") -> "pd.Series":
    """Return the column `leakage_floor` of a leakage table; for earlier runs, which lack it, from its parts."""
    parts = rows.reindex(columns=["leakage_floor", "floor_leakage", "mean_image_leakage"]).astype("float64")
    return parts.pop("leakage_floor").fillna(parts.max(axis=1))


def leakage_floor(row: "pd.Series") -> float:
    """Return the same for one row; NaN for none."""
    return float(leakage_floors(row.to_frame().T).iloc[0])
