"""What `fedspill list` shows of our own parts: written down beside this file, so that it need not import them all.

    python -m simulator.cli.catalogue

writes it anew after a part has come, gone, or changed its first sentence; a test says when that is due.
"""

import json
import re
import sys
from importlib.metadata import entry_points
from inspect import getdoc
from pathlib import Path

FILE = Path(__file__).with_name("catalogue.json")
GROUPS = {
    "attacks": "fedspill.attacks",
    "defenses": "fedspill.defenses",
    "data": "fedspill.data",
    "models": "fedspill.models",
}
ELSEWHERE = {
    "attacks": {},
    "defenses": {"package.module:mod": "a mod of Flower's, or of your own."},
    "data": {"OWNER/NAME": "a data set of the Hugging Face hub."},
    "models": {"FILE.py:factory": "a function that returns an nn.Module; also package.module:factory."},
}


def known_parts() -> dict[str, dict[str, str]]:
    """Of each kind the names a scenario can say, with a line on each: ours, those that installed packages offer, and
    where else names come from."""
    own: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return {kind: own[kind] | offered(group) | ELSEWHERE[kind] for kind, group in GROUPS.items()}


def offered(group: str) -> dict[str, str]:
    """What installed packages offer under a group of entry points: the name, and where it is from."""
    points = sorted(entry_points(group=group), key=lambda point: point.name)
    return {point.name: f"{point.value}, of an installed package." for point in points}


def describe_own_parts() -> dict[str, dict[str, str]]:
    """What FILE has to say: our own parts by kind and name, the first sentence of their docstrings beside them."""
    from attacks import ATTACKS
    from clients.data import SOURCES
    from clients.defenses import DEFENSES
    from clients.models import MODELS

    return {
        "attacks": {name: first_sentence(getdoc(ATTACKS[name])) for name in sorted(ATTACKS)},
        "defenses": {name: first_sentence(about(DEFENSES[name])) for name in sorted(DEFENSES)},
        "data": {name: first_sentence(getdoc(source.load)) for name, source in SOURCES.items()},
        "models": {name: first_sentence(getdoc(options)) for name, options in MODELS.items()},
    }


def about(kind: type) -> str | None:
    """Its docstring, or that of its file where its own begins with what its options mean."""
    own = getdoc(kind)
    return getdoc(sys.modules[kind.__module__]) if re.match(r"[a-z_]+: ", own or "") else own


def first_sentence(doc: str | None) -> str:
    """Of a docstring, in one line."""
    text = " ".join((doc or "").split("\n\n")[0].split())
    return re.split(r"(?<!et al)(?<!sec)\. ", text)[0].rstrip(".") + "."


if __name__ == "__main__":
    FILE.write_text(json.dumps(describe_own_parts(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
