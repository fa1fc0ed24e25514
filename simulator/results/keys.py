"""How an observation is named: its round, whose update it is, and the threat model that sees it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from clients.defenses.differential_privacy.guarantee import Adversary, Guarantee

ALL = -1  # `client` of the union of a round's clients, in tables, in files and on the command line


def owner(client: int, union: str = "all clients") -> str:
    """Whose update it is, in words. union: how to call all clients of a round together."""
    return union if client == ALL else f"client {client}"


@dataclass(frozen=True)
class ObservationKey:
    """What tells one observation of a cell from all others. client: the number of its partition, or ALL."""

    round: int
    client: int
    threat_model: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "ObservationKey":
        """Of a row of a table, or of an observation's file."""
        return cls(int(row["round"]), int(row["client"]), row["threat_model"])

    @property
    def columns(self) -> dict[str, Any]:
        """The key as columns of a table."""
        return asdict(self)

    @property
    def name(self) -> str:
        """The key as a part of a file's name."""
        client = "all" if self.client == ALL else f"{self.client:02d}"
        return f"round_{self.round:04d}_client_{client}_{self.threat_model}"


@dataclass(frozen=True)
class RecordedObservation:
    """An observation as its file has it.

    pairs: names of the checkpoint files sent and returned, one pair for each round. clients: those whose images are
    the private set. round_clients: those among whose images a reconstruction has to single out its own. defense_facts:
    what an adaptive attacker is told, fields of `Knowledge`. adversary: whose eyes it is. guarantees: of differential
    privacy, the worst of those clients, whoever they hold against.
    """

    key: ObservationKey
    pairs: tuple[tuple[str, str], ...]
    clients: tuple[int, ...]
    round_clients: tuple[int, ...]
    defense_facts: dict[str, Any] = field(default_factory=dict)
    adversary: Adversary = "server"
    guarantees: tuple[Guarantee, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Those of `pairs`, each once: rounds share global checkpoints."""
        return tuple(dict.fromkeys(name for pair in self.pairs for name in pair))
