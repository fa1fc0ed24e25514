"""How an observation is named: its round, whose update it is, and the threat model that sees it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ALL = -1  # `client` of the union of a round's clients, in tables, in files and on the command line; nowhere else


@dataclass(frozen=True)
class Client:
    """One client, by the number of its partition."""

    number: int


@dataclass(frozen=True)
class AllClients:
    """All clients of a round together."""


Subject = Client | AllClients
"""Whose update is looked at."""


def subject_of(client: int) -> Subject:
    """The subject that tables, files and the command line write as a number."""
    return AllClients() if client < 0 else Client(client)


@dataclass(frozen=True)
class ObservationKey:
    """What tells one observation of a cell from all others."""

    round: int
    subject: Subject
    threat_model: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "ObservationKey":
        """Of a row of a table, or of an observation's file."""
        return cls(int(row["round"]), subject_of(int(row["client"])), row["threat_model"])

    @property
    def client(self) -> int:
        """The number that tables write: −1 for all clients."""
        return self.subject.number if isinstance(self.subject, Client) else ALL

    @property
    def columns(self) -> dict[str, Any]:
        """The key as columns of a table."""
        return {"round": self.round, "client": self.client, "threat_model": self.threat_model}

    @property
    def name(self) -> str:
        """The key as a part of a file's name."""
        client = f"{self.subject.number:02d}" if isinstance(self.subject, Client) else "all"
        return f"round_{self.round:04d}_client_{client}_{self.threat_model}"


@dataclass(frozen=True)
class RecordedObservation:
    """An observation as its file has it.

    pairs: names of the checkpoint files sent and returned, one pair for each round. clients: those whose images are
    the private set. round_clients: those among whose images a reconstruction has to single out its own.
    """

    key: ObservationKey
    pairs: tuple[tuple[str, str], ...]
    clients: tuple[int, ...]
    round_clients: tuple[int, ...]
