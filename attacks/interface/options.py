"""Checks of an attack's options, each with one line that names the attack, the option, its value and the remedy."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from attacks.interface.errors import InputError


def check_values(
    attack: Any,
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    choices: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Raise InputError for the first option of `attack` that is out of range; None passes as unset.

    positive, not_negative: names of numbers. choices: name -> values. An option `device` is checked in any case.
    """
    for name in (*positive, *not_negative):
        value = getattr(attack, name)
        if value is None or value > 0 or (value == 0 and name in not_negative):
            continue
        wanted = "must not be negative" if name in not_negative else "has to be positive"
        raise InputError(f"attack {attack.name!r}: {name} is {value}, it {wanted}")
    for name, known in (choices or {}).items():
        value = getattr(attack, name)
        if value not in known:
            raise InputError(
                f"attack {attack.name!r}: {name} is {value!r}, choose {', '.join(known[:-1])} or {known[-1]}"
            )
    device = getattr(attack, "device", "auto")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise InputError(f"attack {attack.name!r}: device is {device!r}, choose auto, cpu, cuda or cuda:0")
