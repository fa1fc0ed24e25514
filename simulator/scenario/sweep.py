"""The axes of a sweep: which dotted keys they move, and how their values are called in tables and folders."""

import hashlib
import json
from typing import Any

from attacks import InputError


def axis_keys(axis: str) -> list[str]:
    """The dotted keys that an axis of a sweep moves: "a + b" two, any other one."""
    return [key.strip() for key in axis.split("+")]


def axis_points(axis: str, values: list[Any]) -> list[dict[str, Any]]:
    """What each value of an axis sets, by dotted key; InputError where paired keys have no value each."""
    keys = axis_keys(axis)
    if len(keys) == 1:
        return [{axis: value} for value in values]
    for value in values:
        if not isinstance(value, list) or len(value) != len(keys):
            raise InputError(f"sweep: {axis!r} needs a list of {len(keys)} values at each point, not {value!r}")
    return [dict(zip(keys, value, strict=True)) for value in values]


def short_keys(keys: list[str]) -> dict[str, str]:
    """How the dotted keys of one sweep are called: the fewest last parts that tell each from all others."""
    parts = {key: key.split(".") for key in keys}
    called = {}
    for key, own in parts.items():
        for length in range(1, len(own) + 1):
            called[key] = ".".join(own[-length:])
            if sum(other[-length:] == own[-length:] for other in parts.values()) == 1:
                break
    return called


def as_column(value: Any, values: list[Any]) -> Any:
    """A swept value as the tables hold it: itself where all are plain and of one type, else as JSON text."""
    plain = all(isinstance(other, bool | int | float | str) for other in values)
    one_type = len({type(other) for other in values}) == 1
    return value if plain and one_type else json.dumps(value, sort_keys=True)


def short_name(value: Any) -> str:
    """A value as a part of a folder's name; with a few digits of its hash where it had to be changed for that."""
    text = json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else str(value)
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in text)[:40]
    return name if name == text else f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
