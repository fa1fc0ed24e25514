"""The scenarios that carry the matrix: many faults in one run."""

from pathlib import Path
from typing import Any

from tests.reliability.faults import ATTACKS, CLIENTS, SCORES

CODE = Path(__file__).with_name("misbehaving.py")
CLIENT_SECONDS, ATTACK_SECONDS = 20, 3
SMALL: dict[str, Any] = {
    "data": {"public": 20, "test": 20},
    "partition": {"images": 3},
    "model": {"width": 8, "depth": 1},
    "training": {"steps": 1},
    "output": {"figures": False, "diagnostics": False},
}


def faulty_attacks() -> list[dict[str, Any]]:
    return [
        {"name": f"{CODE}:Faulty", "label": fault.label, "fault": fault.does, "scoring": fault.who == "score"}
        for fault in (*ATTACKS, *SCORES)
    ]


def simulated() -> dict[str, Any]:
    """Every client of round 1 has its own fault but the last one, and so has every attack; round 2 has none."""
    return {
        **SMALL,
        "name": "faults",
        "defenses": [{"name": f"{CODE}:Client", "faults": [*(fault.does for fault in CLIENTS), ""]}],
        "federation": {"rounds": 2, "clients": len(CLIENTS) + 1, "timeout": CLIENT_SECONDS, "max_failures": 0.95},
        "adversary": {
            "threat_models": ["observer"],
            "attacks": faulty_attacks(),
            "timeout": ATTACK_SECONDS,
        },
        "engine": {"attack_workers": 4},
    }
