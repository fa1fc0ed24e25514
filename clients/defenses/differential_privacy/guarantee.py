"""The guarantee of a mechanism: (ε, δ) differential privacy, its unit, its adversary, its neighbouring data."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import TypeAdapter

Adversary = Literal["server", "observer"]
"""The server sees the clients' updates (or their sum), the observer the global checkpoints only."""


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) differential privacy of all rounds so far.

    mechanism: label of its defense. unit: it hides one image (`record`) or everything that a client does (`client`).
    adjacency: neighbouring data have one unit more (`add_remove`) or another one (`replace_one`). nominal_epsilon: of
    the mechanism's own formula, if that is another number.
    """

    mechanism: str
    epsilon: float
    delta: float
    unit: Literal["record", "client"]
    against: Literal["server", "observer", "both"]
    adjacency: Literal["add_remove", "replace_one"]
    nominal_epsilon: float | None = None

    @property
    def kind(self) -> tuple[str, str, str, str, float]:
        """The kind: guarantees are compared within one only."""
        return self.mechanism, self.unit, self.against, self.adjacency, self.delta

    def holds_against(self, adversary: Adversary) -> bool:
        return self.against in (adversary, "both")

    def __str__(self) -> str:
        against = "server and observer" if self.against == "both" else self.against
        return f"{self.mechanism}: ε {self.epsilon:.4g} at δ {self.delta:g} of one {self.unit} against {against}"


def worst(of_clients: Iterable[Sequence[Guarantee]]) -> tuple[Guarantee, ...]:
    """Return the largest ε of each kind, in the order of the chain. of_clients: the guarantees of each client."""
    found: dict[tuple[str, str, str, str, float], Guarantee] = {}
    for guarantee in (one for guarantees in of_clients for one in guarantees):
        known = found.get(guarantee.kind)
        if known is None or guarantee.epsilon > known.epsilon:
            found[guarantee.kind] = guarantee
    return tuple(found.values())


def to_json(guarantees: Sequence[Guarantee]) -> str:
    return json.dumps([asdict(guarantee) for guarantee in guarantees])


def from_json(text: str) -> tuple[Guarantee, ...]:
    """Read guarantees, which clients report; raise ValueError if a field is wrong."""
    found = TypeAdapter(tuple[Guarantee, ...]).validate_json(text)
    for guarantee in found:
        if not (guarantee.epsilon >= 0 and 0 <= guarantee.delta <= 1):
            raise ValueError(f"{guarantee} is no guarantee")
    return found
