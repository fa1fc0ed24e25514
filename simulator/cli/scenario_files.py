"""The commands for whoever writes a scenario: init, schema."""

from attacks.interface.errors import InputError
from simulator.cli.options import InitCommand, SchemaCommand
from simulator.cli.output import Answer, say
from simulator.scenario.template import TEMPLATE
from simulator.terminal import print_json


def init(typed: InitCommand) -> Answer:
    file = typed.file
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


def schema(typed: SchemaCommand) -> Answer:
    from simulator.scenario.json_schema import file_schema  # PyTorch: 2 s, which `init` does without

    found = file_schema()
    print_json(found)
    return Answer(found)
