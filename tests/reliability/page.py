"""The tables of docs/explanation/reliability.md: what becomes of every fault of the matrix."""

import re
from collections.abc import Iterable
from pathlib import Path

from tests.reliability.faults import ATTACKS, CLIENTS, LOST_NODE, SCORES, Fault

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "reliability.md"
TABLES = {"clients": (*CLIENTS, LOST_NODE), "attacks": (*ATTACKS, *SCORES)}


def with_tables(text: str) -> str:
    """The page with the matrix in its places."""
    for name, faults in TABLES.items():
        place = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
        made = table(faults)
        text, count = place.subn(lambda found, made=made: f"{found[1]}\n{made}\n\n{found[2]}", text)
        assert count == 1, name
    return text


def table(faults: Iterable[Fault]) -> str:
    """Markdown."""
    rows = ["| who | what it does | in a simulation | in a deployment |", "|---|---|---|---|"]
    for fault in faults:
        simulated = "" if fault.simulated is None else str(fault.simulated)
        deployed = "the same" if fault.deployed is None else str(fault.deployed)
        rows.append(f"| {fault.who} | {fault.does} | {simulated} | {deployed} |")
    return "\n".join(rows)
