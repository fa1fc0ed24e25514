"""What was done, from the description in a run directory: names and values, whoever wrote them."""

from pathlib import Path
from typing import Any

from simulator.reports.page.view import Facts
from simulator.reports.verdict_words import counted

SCENARIO, AUDIT = "scenario", "audit"  # what a run and an audit were asked for, in their descriptions
APART = ("versions", "machine", "jobs", SCENARIO, AUDIT)  # under headings of their own
FLAGS = (
    "model",
    "shape",
    "mean",
    "std",
    "truth",
    "public",
    "candidates",
)  # of `fedspill audit`, by the names of its options
REPEATED = {"rounds": "round", "clients": "client", "threat_models": "threat-model"}  # options given once for each


def facts_of(description: dict[str, Any]) -> tuple[Facts, ...]:
    """The scenario (or what an audit was asked), and versions and machine, as far as they say anything."""
    others = {name: value for name, value in description.items() if name not in APART}
    own = Facts("What was done", _values(asked_for(description) | others))
    made = _values(_part(description, "versions") | _part(description, "machine"))
    return tuple(facts for facts in (own, Facts("Versions and machine", made)) if facts.values)


def _values(content: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    said = ((str(name).replace("_", " "), in_words(value)) for name, value in content.items())
    return tuple((name, value) for name, value in said if value)


def in_words(value: Any) -> str:
    """A value of YAML in one line; what is empty is left out."""
    if isinstance(value, dict):
        parts = ((str(name).replace("_", " "), in_words(one)) for name, one in value.items())
        return ", ".join(one if name in ("name", "kind") else f"{name} {one}" for name, one in parts if one)
    if isinstance(value, list):
        plain = all(isinstance(one, int | float) for one in value)
        return (", " if plain else "; ").join(filter(None, map(in_words, value)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def asked_for(description: dict[str, Any]) -> dict[str, Any]:
    """The scenario, or the options of an audit."""
    return _part(description, SCENARIO) or _part(description, AUDIT)


def _part(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    """A mapping inside another; an empty one where somebody has put something else there."""
    found = mapping.get(key)
    return dict(found) if isinstance(found, dict) else {}


def audit_command(options: dict[str, Any], out: str) -> str:
    """The command of an audit, from its description."""
    given = {name: options.get(name) for name in FLAGS}
    texts = {name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in given.items()}
    said = [f"--{name} {value}" for name, value in texts.items() if value]
    said += [f"--{flag} {value}" for name, flag in REPEATED.items() for value in options.get(name) or ()]
    attacks = options.get("attacks") or ()
    said += [f"--attack {attack['label']}" for attack in attacks if attack["label"] == attack["name"]]
    return " ".join(["fedspill audit", str(options.get("recording", "RECORDING")), *said, "--out", out])


def summary_of(description: dict[str, Any]) -> str:
    """One line: data, network, clients, rounds, date, as far as the description has them."""
    asked = asked_for(description)
    federation = _part(asked, "federation")
    parts = [
        _part(asked, "data").get("name"),
        asked["model"].get("name") if isinstance(asked.get("model"), dict) else Path(str(asked.get("model", ""))).name,
        federation.get("clients") and counted(federation["clients"], "client"),
        federation.get("rounds") and counted(federation["rounds"], "round"),
        _part(federation, "strategy").get("name"),
        str(description.get("started", ""))[:10],
    ]
    return " · ".join(str(part) for part in parts if part)


def noun_of(description: dict[str, Any]) -> str:
    """What the images are."""
    return "digit" if _part(_part(description, SCENARIO), "data").get("name") in ("digits", "mnist") else "image"
