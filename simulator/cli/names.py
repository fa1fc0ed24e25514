"""`fedspill list`: the names that a scenario can say."""

from inspect import getdoc
from textwrap import wrap
from typing import Any

from attacks import ATTACKS
from attacks.interface.plugins import Registry
from clients.data import SOURCES
from clients.defenses import DEFENSES
from clients.models import MODELS
from simulator.cli.commands import ListCommand
from simulator.cli.output import CommandResult, out, say
from simulator.reports.verdict_words import first_sentence
from simulator.run.strategies import known_strategies

ELSEWHERE = {  # names that no registry holds
    "defenses": {"package.module:mod": "a mod of Flower's, or of your own."},
    "data": {"OWNER/NAME": "a data set of the Hugging Face hub."},
    "models": {"FILE.py:NAME": "a function that returns an nn.Module; also package.module:NAME."},
}


def list_names(typed: ListCommand) -> CommandResult:
    """Print every name that a scenario can say with a sentence on it, those of installed packages among them."""
    own = {
        "attacks": {name: first_sentence(getdoc(ATTACKS[name])) for name in sorted(ATTACKS)},
        "defenses": {name: first_sentence(getdoc(DEFENSES[name])) for name in sorted(DEFENSES)},
        "data": {name: first_sentence(getdoc(source.load)) for name, source in SOURCES.items()},
        "models": {name: first_sentence(getdoc(options)) for name, options in MODELS.items()},
    }
    registries: dict[str, Registry[Any]] = {"attacks": ATTACKS, "defenses": DEFENSES, "data": SOURCES, "models": MODELS}
    known = {kind: names | registries[kind].offered() | ELSEWHERE.get(kind, {}) for kind, names in own.items()}
    for kind, names in known.items():
        say(f"{kind}:")
        widest = max(map(len, names)) + 4
        for name, text in names.items():  # the description folded beside it
            for line in wrap(text, out.width, initial_indent=f"  {name}".ljust(widest), subsequent_indent=" " * widest):
                say(line)
    strategies = known_strategies()
    say("strategies:")
    for line in wrap(", ".join(strategies), out.width, initial_indent="  ", subsequent_indent="  "):
        say(line)
    return CommandResult({**known, "strategies": strategies})
