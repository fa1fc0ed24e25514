"""Checks of the options of attacks and defenses, each with one line that names the option, its value and the remedy."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from attacks.interface.errors import InputError, nearest


def check_values(
    owner: Any,
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    *,
    below_one: Iterable[str] = (),
    at_most: Mapping[str, float] | None = None,
    called: str = "",
) -> None:
    """Raise InputError for the first option of `owner`, a dataclass, that is out of range; None passes as unset.

    positive, not_negative: names of finite numbers. below_one: of numbers between 0 and 1, at_most: of positive ones,
    with the largest value. called: how the error calls the owner, by default by its kind and name. An option whose
    type is a Literal has to be one of its values, and `device` a device, in any case.
    """
    called = called or f"{owner.kind} {owner.name!r}"
    ranges: list[tuple[Iterable[str], str, Callable[[float], bool]]] = [
        (positive, "has to be positive and finite", lambda value: 0 < value < math.inf),
        (not_negative, "must not be negative", lambda value: 0 <= value < math.inf),
        (below_one, "has to be above 0 and below 1", lambda value: 0 < value < 1),
    ]
    for names, wanted, holds in ranges:
        for name in names:
            value = getattr(owner, name)
            if value is not None and not holds(value):
                raise InputError(f"{called}: {name} is {value}, it {wanted}")
    for name, most in (at_most or {}).items():
        value = getattr(owner, name)
        if value is not None and not 0 < value <= most:
            raise InputError(f"{called}: {name} is {value}, it has to be above 0 and at most {most:g}")
    for option in fields(owner):
        value, known = getattr(owner, option.name), get_args(option.type)
        if get_origin(option.type) is Literal and value not in known:
            choices = f"{', '.join(known[:-1])} or {known[-1]}"
            raise InputError(f"{called}: {option.name} is {value!r}, choose {choices}")
    device = getattr(owner, "device", "auto")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise InputError(f"{called}: device is {device!r}, choose auto, cpu, cuda or cuda:0")


def check_known(called: str, options: Iterable[str], known: list[str]) -> None:
    """Raise InputError, with the nearest valid name, for the first of `options` that is not `known`."""
    for option in options:
        if option not in known:
            raise InputError(f"{called} has no option {option!r}{nearest(option, known)}")
