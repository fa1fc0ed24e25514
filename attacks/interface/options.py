"""Check and describe the options of attacks and defenses, and the fields of `Knowledge`, from one declaration.

A declaration is a field `learning_rate: Annotated[float, POSITIVE] = 0.05` of a dataclass, and a line
`learning_rate: …` of its docstring.
"""

import inspect
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

from attacks.interface.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Range:
    """The finite numbers that an option or a field may hold.

    said: the end of an error message, as "has to be positive and finite" or "must not be negative".
    low, high: ends of the range.
    with_low, with_high: whether these ends belong to the range.
    """

    said: str
    low: float = -math.inf
    high: float = math.inf
    with_low: bool = False
    with_high: bool = False

    def holds(self, value: Any) -> bool:
        """Return whether a number, or every number of a tuple, lies in the range. None, an unset option, does."""
        if value is None:
            return True
        if isinstance(value, tuple):
            return all(map(self.holds, value))
        above = self.low < value or (self.with_low and value == self.low)
        return above and (value < self.high or (self.with_high and value == self.high))

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """Add the range to the JSON schema that pydantic makes of the declaration. It does not forbid null."""
        ends = {
            "minimum" if self.with_low else "exclusiveMinimum": self.low,
            "maximum" if self.with_high else "exclusiveMaximum": self.high,
        }
        return handler(core) | {name: end for name, end in ends.items() if math.isfinite(end)}

    def __str__(self) -> str:
        """Return the range for a table, as "positive and finite"."""
        return self.said.removeprefix("has to be ").replace("must not be", "not")


POSITIVE = Range("has to be positive and finite", 0)
NOT_NEGATIVE = Range("must not be negative", 0, with_low=True)
BELOW_ONE = Range("has to be above 0 and below 1", 0, 1)


def above_zero_to(most: float) -> Range:
    """Make the range above 0, up to `most`."""
    return Range(f"has to be above 0 and at most {most:g}", 0, most, with_high=True)


def no_more_than(most: float) -> Range:
    """Make the range up to `most`."""
    return Range(f"has to be at most {most}", high=most, with_high=True)


def ranges_of(annotation: Any) -> list[Range]:
    """List the ranges that stand in the annotation of an option or a field."""
    return [part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Range)]


def misfits(owner: Any) -> Iterator[str]:
    """Yield an error message for each field of a dataclass that holds a number out of its range."""
    for option in fields(owner):
        value = getattr(owner, option.name)
        for allowed in ranges_of(option.type):
            if not allowed.holds(value):
                each = "each number of it" if isinstance(value, tuple) else "it"
                yield f"{option.name} is {value}, {each} {allowed.said}"


def _wrong_choices(owner: Any) -> Iterator[str]:
    """Yield an error message, with the choices, for each option that is not in its `Literal`, and for the device."""
    for option in fields(owner):
        value, known = getattr(owner, option.name), get_args(option.type)
        if get_origin(option.type) is Literal and value not in known:
            yield f"{option.name} is {value!r}, choose {', '.join(known[:-1])} or {known[-1]}"
    device = getattr(owner, "device", "auto")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        yield f"device is {device!r}, choose auto, cpu, cuda or cuda:0"


def check_values(owner: Any, called: str = "") -> None:
    """Raise InputError for the first option that is out of its range or not in its `Literal`.

    called: the owner's name in the error; default: its kind and name.
    """
    for problem in (*misfits(owner), *_wrong_choices(owner)):
        raise InputError(f"{called or f'{owner.kind} {owner.name!r}'}: {problem}")


def check_known(called: str, options: Iterable[str], known: list[str]) -> None:
    """Raise InputError, with the nearest valid name, for the first of `options` that is not `known`."""
    for option in options:
        if option not in known:
            raise InputError(f"{called} has no option {option!r}{did_you_mean(option, known)}")


def meanings(kind: type) -> dict[str, str]:
    """Read the meaning of each field from the docstrings of a class and its bases. A meaning is a line "name, other:
    meaning" and the indented lines below it."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in "\n".join(inspect.cleandoc(base.__doc__ or "") for base in reversed(kind.__mro__)).split("\n"):
        head = re.match(r"(\w+(?:, \w+)*): (.*)", line)
        if head is not None:
            names = head[1].split(", ")
            found |= dict.fromkeys(names, head[2])
        elif line.startswith("    "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return {option.name: found[option.name] for option in fields(kind) if option.name in found}
