"""The page docs/reference/scenarios.md, made from the models themselves:

python -m docs.reference.scenarios > docs/reference/scenarios.md
"""

import dataclasses
import types
import typing

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from attacks import ATTACKS, Knowledge
from attacks.interface.options import meanings, ranges_of
from clients.config import DefenseConfig
from clients.data import SOURCES
from clients.defenses import DEFENSES
from clients.models import MODELS
from simulator.scenario.benchmark import BenchmarkConfig
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import AttackConfig

HEAD = """# Every key of a scenario

Made from the validated models (`python -m docs.reference.scenarios`); `fedspill check FILE` names a wrong key, its
line and the nearest valid one. `extends: FILE` takes over another scenario: mappings merge key by key, all else is
replaced. A profile of the other file does not replace what this one gives. `OPTION: null` removes an option that the
other file's model has and yours has not, `sweep: {}` removes its sweep.
`--set section.key=value` overrides on the command line; a number indexes a list (`adversary.attacks.0.iterations=100`).
"""


def reference() -> str:
    """The whole page, Markdown."""
    named = {name: section_of(field.annotation) for name, field in Scenario.model_fields.items()}
    top = [row(name, field) for name, field in Scenario.model_fields.items() if named[name] is None]
    known = {section: name for name, section in named.items() if section is not None}
    sections = [text for section, name in list(known.items()) for text in section_texts(name, section, known)]
    models = "\n".join(table(f"### {name}", MODELS[name]) for name in MODELS)
    said = {name: (source.load.__doc__ or "").split("\n\n")[0].split() for name, source in SOURCES.items()}
    data = "\n".join(f"- `{name}`: {' '.join(words)}" for name, words in said.items())
    attacks, defenses = ("\n".join(options_table(name, known[name]) for name in known) for known in (ATTACKS, DEFENSES))
    fields = Knowledge.about().items()
    knowledge = "\n".join(f"| `{name}` | {about.meaning} | `{about.example}` |" for name, about in fields)
    return "\n".join(
        [
            HEAD,
            f"## Top level\n\n{TABLE}\n" + "\n".join(top) + "\n",
            *sections,
            *section_texts("benchmark", BenchmarkConfig, {}),
            f"## Data sets\n\n{data}\n",
            f"## Models and their options\n\nThey stand beside `model.name`; another model's are refused.\n\n{models}",
            f"## Attacks and their options\n\n{attacks}\n",
            f"## Defenses and their options\n\n{defenses}\n",
            f"## What can be granted under `adversary.knowledge`, or told with `--know FIELD=VALUE`\n\n"
            f"| field | | example |\n|---|---|---|\n{knowledge}\n",
        ]
    )


def section_texts(path: str, section: type[BaseModel], known: dict[type[BaseModel], str]) -> list[str]:
    """A section and those inside it that are not `known`, by their dotted path; they are added."""
    base = next((base for base in section.__bases__ if base in known), None)
    own = {k: field for k, field in section.model_fields.items() if base is None or k not in base.model_fields}
    inherited = "" if base is None else f" The keys of `{known[base]}`, and:"
    texts = [table(f"{'###' if '.' in path else '##'} {path}", section, inherited, own)]
    for key, field in own.items():
        for inner in sections_in(field.annotation):
            if inner not in known:
                known[inner] = f"{path}.{key}"
                texts += section_texts(known[inner], inner, known)
    return texts


def table(title: str, section: type[BaseModel], inherited: str = "", fields: dict[str, FieldInfo] | None = None) -> str:
    """A heading, the section's docstring, and a row for each key; fields: default all of the section's."""
    rows = "\n".join(row(key, field) for key, field in (fields or section.model_fields).items())
    return f"{title}\n\n{section.__doc__ or ''}{inherited}\n\n{TABLE}\n{rows}\n"


def sections_in(annotation: object) -> list[type[BaseModel]]:
    """The sections that a key takes, one, some of a list, or none."""
    section = section_of(annotation)
    inner = [found for part in typing.get_args(annotation) for found in sections_in(part)]
    return inner if section is None else [section]


def options_table(name: str, kind: type) -> str:
    """A heading, and a row for each option of an attack or a defense."""
    said = meanings(kind)
    rows = [
        f"| `{option.name}` | {', '.join(map(str, (words_for(option.type), *ranges_of(option.type))))} | "
        f"{'' if option.default is None else f'`{option.default}`'} | {said.get(option.name, '')} |"
        for option in dataclasses.fields(kind)
    ]
    return "\n".join([f"### {name}\n", *([TABLE, *rows] if rows else ["No options."]), ""])


TABLE = "| key | type | default | |\n|---|---|---|---|"


def row(name: str, field: FieldInfo) -> str:
    text = (field.description or "").replace("|", "or")
    return f"| `{name}` | {words_for(field.annotation)} | {default_of(field)} | {text} |"


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section that a key stands for, if it is one."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    direct = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return typing.cast(type[BaseModel], annotation) if direct else None


def words_for(annotation: object) -> str:
    """A type in the words of YAML."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return words_for(arguments[0])
    if origin is typing.Literal:
        return " / ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " / ".join(words_for(part) for part in arguments if part is not type(None))
    if origin in (list, tuple):
        parts = [words_for(part) for part in dict.fromkeys(arguments)]
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
        filled_in = field.default_factory is not None or "default" in (field.description or "")
        return "" if filled_in else "required"
    if isinstance(field.default, BaseModel):
        return ""
    return "" if field.default is None else f"`{field.default}`"


if __name__ == "__main__":
    print(reference(), end="")
