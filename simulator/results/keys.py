"""`ObservationKey` names an observation by round, client and threat model; `RecordedObservation` declares its file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from attacks.interface.observation import ALL as ALL
from attacks.interface.observation import owner as owner
from clients.defenses.guarantee import Adversary, Guarantee

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class ObservationKey:
    """Identifies an observation of a cell.

    client: the number of its partition, or ALL.
    """

    round: int
    client: int
    threat_model: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "ObservationKey":
        """Return the key of a row of a table, or of the fields of an observation."""
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


class RecordedObservation(BaseModel):
    """An observation as its file has it. It is checked when it is read: a run directory may come by mail.

    clients: the clients whose images are the private set.
    round_clients: the clients of the round: a reconstruction has to be nearer to its own image than to any of theirs.
    pairs: names of the checkpoint files sent and returned, one pair for each round.
    knowledge: fields of `Knowledge` that the adversary was granted, as `Knowledge.given` returns them.
    defense_facts: fields of `Knowledge` that an adaptive attacker is told of the defenses.
    adversary: who sees it: only a guarantee against this adversary counts.
    guarantees: of differential privacy: the largest ε among `clients`, for guarantees against any adversary.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")

    round: int
    client: int
    threat_model: str
    clients: tuple[int, ...]
    round_clients: tuple[int, ...]
    pairs: tuple[tuple[str, str], ...] = Field(min_length=1)
    knowledge: dict[str, Any]
    defense_facts: dict[str, Any] = {}
    adversary: Adversary = "server"
    guarantees: tuple[Guarantee, ...] = ()

    @classmethod
    def of(
        cls, key: ObservationKey, pairs: Pairs, clients: Sequence[int], round_clients: Sequence[int], **more: Any
    ) -> "RecordedObservation":
        """Return the observation with this key. more: the other fields."""
        more = {"knowledge": {}, **key.columns, **more}
        return cls(pairs=pairs, clients=clients, round_clients=round_clients, **more)

    @property
    def key(self) -> ObservationKey:
        return ObservationKey(self.round, self.client, self.threat_model)

    @property
    def files(self) -> tuple[str, ...]:
        """The files of `pairs`, each once: rounds share global checkpoints."""
        return tuple(dict.fromkeys(name for pair in self.pairs for name in pair))
