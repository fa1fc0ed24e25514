"""What a mechanism promises: (ε, δ) differential privacy, of what, against whom, and what "neighbouring" means."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import TypeAdapter

Adversary = Literal["server", "observer"]
"""Who looks: the server sees what clients return (or their sum), the observer the global checkpoints only."""


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) differential privacy of all rounds so far.

    mechanism: label of the defense that gives it. unit: what it hides, one image (`record`) or all that a client does
    (`client`). against: for whose eyes it holds. adjacency: how far neighbouring data are apart, by one unit that is
    there or not (`add_remove`) or by one that is another (`replace_one`). nominal_epsilon: what the mechanism's own
    formula says, where that is another number.
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
        """Guarantees are compared within a kind only."""
        return self.mechanism, self.unit, self.against, self.adjacency, self.delta

    def holds_against(self, adversary: Adversary) -> bool:
        return self.against in (adversary, "both")

    def __str__(self) -> str:
        against = "server and observer" if self.against == "both" else self.against
        return f"{self.mechanism}: ε {self.epsilon:.4g} at δ {self.delta:g} of one {self.unit} against {against}"


def worst(of_clients: Iterable[Sequence[Guarantee]]) -> tuple[Guarantee, ...]:
    """Of each kind the largest ε, in the order of the chain. of_clients: the guarantees of each client."""
    found: dict[tuple[str, str, str, str, float], Guarantee] = {}
    for guarantee in (one for guarantees in of_clients for one in guarantees):
        known = found.get(guarantee.kind)
        if known is None or guarantee.epsilon > known.epsilon:
            found[guarantee.kind] = guarantee
    return tuple(found.values())


def to_json(guarantees: Sequence[Guarantee]) -> str:
    return json.dumps([asdict(guarantee) for guarantee in guarantees])


def from_json(text: str) -> tuple[Guarantee, ...]:
    """ValueError where they are none: clients say them, and whoever sums them up leans on every field."""
    found = TypeAdapter(tuple[Guarantee, ...]).validate_json(text)
    for guarantee in found:
        if not (guarantee.epsilon >= 0 and 0 <= guarantee.delta <= 1):
            raise ValueError(f"{guarantee} is no guarantee")
    return found
