"""docs/scenarios.md, made from the models themselves: `python -m simulator.reference > docs/scenarios.md`."""

import dataclasses
import types
import typing

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from attacks import ATTACKS, Knowledge, get_attack
from attacks.base import option_names
from clients.config import DefenseConfig
from clients.defenses import DEFENSES, Defense
from simulator.scenario import Scenario
from simulator.sections import AttackConfig

HEAD = """# Every key of a scenario

Made from the validated models (`python -m simulator.reference`); `fedleak check FILE` names a wrong key, its line and
the nearest valid one. `extends: FILE` takes over another scenario: mappings merge key by key, all else is replaced.
`--set section.key=value` overrides on the command line; a number indexes a list (`adversary.attacks.0.iterations=100`).
"""


def reference() -> str:
    """The whole page, Markdown."""
    top, sections = [], []
    for name, field in Scenario.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            top.append(row(name, field))
        else:
            rows = "\n".join(row(key, value) for key, value in section.model_fields.items())
            sections.append(f"## {name}\n\n{section.__doc__ or ''}\n\n{TABLE}\n{rows}\n")
    attacks = "\n".join(f"- `{name}`: {options_of(name) or 'no options'}" for name in ATTACKS)
    defenses = "\n".join(f"- `{name}`: {defaults_of(DEFENSES[name]) or 'no options'}" for name in DEFENSES)
    knowledge = ", ".join(f"`{name}`" for name in Knowledge.names())
    return "\n".join(
        [
            HEAD,
            f"## Top level\n\n{TABLE}\n" + "\n".join(top) + "\n",
            *sections,
            f"## Attacks and their options (defaults)\n\n{attacks}\n",
            f"## Defenses and their options (defaults)\n\n{defenses}\n",
            f"## What can be granted under `adversary.knowledge`\n\n{knowledge}\n",
        ]
    )


def options_of(attack: str) -> str:
    """The options of an attack with their defaults."""
    return ", ".join(f"`{option}` ({getattr(get_attack(attack), option)})" for option in option_names(attack))


def defaults_of(defense: type[Defense]) -> str:
    """The options of a defense with their defaults."""
    made = defense()
    return ", ".join(f"`{option.name}` ({getattr(made, option.name)})" for option in dataclasses.fields(made))


TABLE = "| key | type | default | |\n|---|---|---|---|"


def row(name: str, field: FieldInfo) -> str:
    text = (field.description or "").replace("|", "or")
    return f"| `{name}` | {describe(field.annotation)} | {default_of(field)} | {text} |"


def section_of(annotation: object) -> type[BaseModel] | None:
    """The nested model that a key stands for, if it is a section of its own."""
    direct = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return typing.cast(type[BaseModel], annotation) if direct else None


def describe(annotation: object) -> str:
    """A type in the words of YAML."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return describe(arguments[0])
    if origin is typing.Literal:
        return " / ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " / ".join(describe(part) for part in arguments if part is not type(None))
    if origin in (list, tuple):
        parts = [describe(part) for part in dict.fromkeys(arguments)]
        return f"list of {' / '.join(parts)}"
    if origin is dict or annotation is dict:
        return "mapping"
    if annotation in (AttackConfig, DefenseConfig):
        return "name or mapping"
    known = {int: "integer", float: "number", str: "text", bool: "true / false"}
    if annotation in known:
        return known[typing.cast(type, annotation)]
    section = section_of(annotation)
    return f"section, as {section.__name__.removesuffix('Config').lower()}" if section is not None else "any"


def default_of(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required" if field.default_factory is None else ""
    if isinstance(field.default, BaseModel):
        return ""
    return "" if field.default is None else f"`{field.default}`"


if __name__ == "__main__":
    print(reference(), end="")
