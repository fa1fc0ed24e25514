"""`fedspill list`: the names that a scenario can say."""

from importlib.metadata import entry_points
from inspect import getdoc
from textwrap import wrap

from attacks import ATTACKS
from clients.data import SOURCES
from clients.defenses import DEFENSES
from clients.models import MODELS
from simulator.cli.commands import ListCommand
from simulator.cli.output import Answer, out, say
from simulator.reports.verdict_words import first_sentence
from simulator.run.strategies import known_strategies

ELSEWHERE = {  # names that no registry holds
    "defenses": {"package.module:mod": "a mod of Flower's, or of your own."},
    "data": {"OWNER/NAME": "a data set of the Hugging Face hub."},
    "models": {"FILE.py:factory": "a function that returns an nn.Module; also package.module:factory."},
}


def list_names(typed: ListCommand) -> Answer:
    """Print every name that a scenario can say with a sentence on it, those of installed packages among them."""
    own = {
        "attacks": {name: first_sentence(getdoc(ATTACKS[name])) for name in sorted(ATTACKS)},
        "defenses": {name: first_sentence(getdoc(DEFENSES[name])) for name in sorted(DEFENSES)},
        "data": {name: first_sentence(getdoc(source.load)) for name, source in SOURCES.items()},
        "models": {name: first_sentence(getdoc(options)) for name, options in MODELS.items()},
    }
    known = {kind: names | offered(f"fedspill.{kind}") | ELSEWHERE.get(kind, {}) for kind, names in own.items()}
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
    return Answer({**known, "strategies": strategies})


def offered(group: str) -> dict[str, str]:
    """Return what installed packages offer under a group of entry points: each name, and where it is from."""
    points = sorted(entry_points(group=group), key=lambda point: point.name)
    return {point.name: f"{point.value}, of an installed package." for point in points}
