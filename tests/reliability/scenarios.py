"""The scenarios that carry the matrix: many faults in one run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.reliability.faults import ATTACKS, CLIENTS, SCORES, Fault

CLIENT, ATTACK = (Path(__file__).with_name(f"faulty_{who}.py") for who in ("client", "attack"))
CLIENT_SECONDS, ATTACK_SECONDS = 15, 3
SMALL: dict[str, Any] = {
    "data": {"public": 20, "test": 20},
    "partition": {"images": 3},
    "model": {"width": 8, "depth": 1},
    "training": {"steps": 1},
    "output": {"figures": False, "diagnostics": False},
}


def faulty_attacks(faults: Iterable[Fault]) -> dict[str, Any]:
    """The part of a scenario in which the observer's attacks and scores misbehave in round 1, by the label of each."""
    attacks = [
        {"name": f"{ATTACK}:Faulty", "label": fault.label, "fault": fault.does, "scoring": fault.who == "score"}
        for fault in faults
    ]
    return {"threat_models": ["observer"], "attacks": attacks, "timeout": ATTACK_SECONDS}


def faulty_clients(*rounds: list[str]) -> dict[str, Any]:
    """The part of a scenario that makes them misbehave; rounds: the faults of each, by client."""
    return {"name": f"{CLIENT}:Client", "faults": list(rounds)}


def deployed(rounds: list[list[str]], timeout: float, attacks: Iterable[Fault]) -> dict[str, Any]:
    """A client for each fault of a round, on as many SuperNodes; the first behaves in all of them. attacks: the faults
    of those, and of scores."""
    return {
        **SMALL,
        "name": "deployed",
        "defenses": [faulty_clients(*rounds)],
        "federation": {"rounds": len(rounds), "clients": len(rounds[0]), "timeout": timeout, "max_failures": 0.95},
        "adversary": faulty_attacks(attacks),
        "engine": {"attack_workers": 2},
    }


def simulated() -> dict[str, Any]:
    """Every client of round 1 has its own fault but the last one, and so has every attack; round 2 has none."""
    return {
        **SMALL,
        "name": "faults",
        "defenses": [faulty_clients([fault.does for fault in CLIENTS])],
        "federation": {"rounds": 2, "clients": len(CLIENTS) + 1, "timeout": CLIENT_SECONDS, "max_failures": 0.95},
        "adversary": faulty_attacks((*ATTACKS, *SCORES)),
        "engine": {"attack_workers": 4},
    }
