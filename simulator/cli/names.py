"""The commands about what a scenario can say: list, init, schema."""

from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from attacks.interface.errors import InputError
from simulator.cli.catalogue import known_parts
from simulator.cli.output import Answer, command, out, print_json, say
from simulator.run.strategies import known_strategies


@command
def list_names() -> Answer:
    """List the attacks, defenses, data sets, models and strategies that a scenario can name, with a line on each."""
    known = known_parts()
    for kind, names in known.items():
        say(f"{kind}:")
        show_names(names)
    strategies = known_strategies()
    say("strategies:")
    for line in wrap(", ".join(strategies), out.width, initial_indent="  ", subsequent_indent="  "):
        say(line)
    return Answer({**known, "strategies": strategies})


def show_names(names: dict[str, str]) -> None:
    """A line for each name, its description folded beside it."""
    widest = max(map(len, names)) + 4
    for name, text in names.items():
        for line in wrap(text, out.width, initial_indent=f"  {name}".ljust(widest), subsequent_indent=" " * widest):
            say(line)


@command
def init(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="where to write it; default: the screen")] = None,
) -> Answer:
    """Write a commented scenario to start from; `fedspill check FILE` accepts it as it is."""
    from simulator.scenario.template import TEMPLATE

    if file is None:
        print(TEMPLATE, end="")
        return Answer({"scenario": TEMPLATE})
    if file.exists():
        raise InputError(f"{str(file)!r} exists: name another file")
    if not file.resolve().parent.is_dir():
        raise InputError(f"{str(file.parent)!r} is no folder: make it, or name another file")
    file.write_text(TEMPLATE, encoding="utf-8")
    say(f"written: {file}; next: fedspill check {file}")
    return Answer({"scenario": TEMPLATE, "file": str(file)})


@command
def schema() -> Answer:
    """Print the JSON schema of scenarios and benchmarks: editors complete and check with it."""
    from simulator.scenario.json_schema import file_schema

    found = file_schema()
    print_json(found)
    return Answer(found)
