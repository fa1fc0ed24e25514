"""`fedspill check`: what would run, and what would it cost?"""

from simulator.cli.commands import CheckCommand
from simulator.cli.output import CommandResult, out
from simulator.run.estimate import describe_plan
from simulator.run.plan import make_plan
from simulator.scenario.benchmark import load_any


def check(typed: CheckCommand) -> CommandResult:
    said = {}
    for line in describe_plan(make_plan(load_any(typed.file, typed.profile, typed.overrides))):
        out.print(line)  # the price comes some seconds after the rest
        name, text = line.split(":", 1)
        said[name] = " ".join(text.split())
    return CommandResult(said)
