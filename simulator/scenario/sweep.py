"""The axes of a sweep: the dotted keys that they move, and the names of their values in tables and folders."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attacks.interface.errors import InputError, did_you_mean

ROW_KEYS = ("label", "defenses", "set")
MOST_CELLS = 10_000
NOT_SET = ("name", "seed", "label", "defenses", "engine", "output", "sweep")  # by a row of the axis `defenses`
Point = dict[str, Any]
"""The values of one combination, by dotted key."""


@dataclass(frozen=True)
class SweepGrid:
    """The points of a sweep.

    axes: for each axis, as the scenario writes it, the point of each of its values.
    """

    axes: dict[str, list[Point]]

    @classmethod
    def of(cls, sweep: dict[str, list[Any]]) -> "SweepGrid":
        """Put seeds last, so that paired cells stand together. Raise InputError if paired keys have no value each."""
        if (cells := math.prod(map(len, sweep.values()))) > MOST_CELLS:
            raise InputError(f"sweep: {cells:,} settings, at most {MOST_CELLS:,} run together: split the sweep")
        ordered = sorted(sweep, key=lambda axis: axis == "seed")
        return cls({axis: axis_points(axis, sweep[axis]) for axis in ordered})

    @property
    def axis_of(self) -> dict[str, str]:
        return {key: axis for axis in self.axes for key in axis_keys(axis)}

    def points(self) -> Iterator[Point]:
        """Yield every combination; an empty one without an axis."""
        for combination in itertools.product(*self.axes.values()):
            yield {key: value for point in combination for key, value in point.items()}

    def name_of(self, point: Point, defense: str) -> str:
        """Return the name of a point, for a folder. defense: the name of its chain in tables."""
        short = short_keys(list(self._values))
        parts = {short[key]: short_name(point[key]) for key in self._values}
        if "defenses" in point:
            parts = {"defense": short_name(defense), **parts}
            del parts["defenses"]
        return ",".join(f"{key}={value}" for key, value in parts.items())

    def words_of(self, point: Point, defense: str) -> str:
        """Say a point as tables and verdicts do."""
        return setting_words(({"defense": defense} if "defenses" in point else {}) | self.columns_of(point))

    def columns_of(self, point: Point) -> dict[str, Any]:
        """Return the columns of a point, without the defenses, which have a column of every table."""
        return {key: as_column(point[key], values) for key, values in self._values.items() if key != "defenses"}

    @cached_property
    def _values(self) -> dict[str, list[Any]]:
        """The values of every key in the name of an axis; other keys of a row of `defenses` go by its label."""
        return {
            key: [point[key] for point in points]
            for axis, points in self.axes.items() for key in axis_keys(axis)
        }  # fmt: skip


def setting_words(setting: Mapping[str, Any]) -> str:
    """Say the columns of a setting in words: `no defense, seed=1`."""
    said = (value if name == "defense" else f"{name}={value}" for name, value in setting.items())
    return ", ".join("no defense" if part == "none" else part for part in said)


def axis_keys(axis: str) -> list[str]:
    """Return the dotted keys that an axis moves: "a + b" two, any other one."""
    return [key.strip() for key in axis.split("+")]


def axis_points(axis: str, values: list[Any]) -> list[dict[str, Any]]:
    """Return the point of each value of an axis; raise InputError if paired keys have no value each."""
    keys = axis_keys(axis)
    if axis == "defenses":
        return [defense_point(value) for value in values]
    if len(keys) == 1:
        return [{axis: value} for value in values]
    for value in values:
        if not isinstance(value, list) or len(value) != len(keys):
            raise InputError(f"sweep: {axis!r} needs a list of {len(keys)} values at each point, not {value!r}")
    return [dict(zip(keys, value, strict=True)) for value in values]


def defense_point(value: Any) -> Point:
    """Return the point of a value of the axis `defenses`: a chain, or a row {label, defenses, set}. label: the name in
    tables. set: dotted key -> value. Raise InputError if the row has other keys."""
    if not isinstance(value, dict):
        return {"defenses": value}
    row = {"defenses": [], "set": {}, **value}
    for key in row:
        if key not in ROW_KEYS:
            raise InputError(
                f"defenses: a row has no key {key!r}{did_you_mean(key, list(ROW_KEYS))}: settings go under `set`"
            )
    if not isinstance(row.get("label"), str) or not isinstance(row["set"], dict):
        raise InputError(f"defenses: the row {value!r} needs a `label`, and `set` with dotted keys and their values")
    for key in row["set"]:
        if str(key).partition(".")[0] in NOT_SET:
            raise InputError(f"defenses: row {row['label']!r} cannot set {key!r}: all rows share it")
    return {"defenses": row["defenses"], "label": row["label"], **row["set"]}


def short_keys(keys: list[str]) -> dict[str, str]:
    """Shorten the dotted keys of a sweep: to the fewest last parts that tell each from all others."""
    parts = {key: key.split(".") for key in keys}

    def short(own: list[str]) -> str:
        endings = (own[-length:] for length in range(1, len(own) + 1))
        alone = (end for end in endings if sum(other[-len(end) :] == end for other in parts.values()) == 1)
        return ".".join(next(alone, own))

    return {key: short(own) for key, own in parts.items()}


def as_column(value: Any, values: list[Any]) -> Any:
    """Return a swept value for a column: itself if all values are plain and of one type, else as JSON text."""
    plain = all(isinstance(other, bool | int | float | str) for other in values)
    one_type = len({type(other) for other in values}) == 1
    return value if plain and one_type else json.dumps(value, sort_keys=True)


def short_name(value: Any) -> str:
    """Return a value as a part of a folder's name, with digits of its hash if it had to be changed."""
    text = json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else str(value)
    name = "".join(c if c.isalnum() or c in "._-+" else "-" for c in text)[:40]
    return name if name == text else f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
