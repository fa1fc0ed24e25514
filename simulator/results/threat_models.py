"""Threat models: who looks at which checkpoints of a round, and whose images the update then holds.

| threat model | looks at, in a round | private set |
|---|---|---|
| `server` | what each client returned | the client's images |
| `server`, secure aggregation | the sum of what the clients returned | the images of all clients of the round |
| `observer` | the global checkpoint before and after the round | the images of all clients of the round |
| `history` | what the models beside it look at (alone: `server`), in all rounds so far | the images of all who joined |
| `server_history` | what `server` looks at, in all rounds so far, whoever is named beside it | as above |

A further threat model is a class with `views` in this file, an entry in `THREAT_MODELS` and its name in
`ThreatModelName`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, Literal

from clients.defenses.differential_privacy.guarantee import Adversary
from simulator.results.keys import ALL, ObservationKey, RecordedObservation

ThreatModelName = Literal["server", "observer", "history", "server_history"]
SECURE_AGGREGATION = (
    "secure aggregation: the server sees the sum of the round's updates only; that is attacked as client -1"
)


class CheckpointSource(Enum):
    """A series of checkpoints, one for each round, that somebody can compare with the checkpoint sent."""

    RETURNED = "what a client returned"
    SUM = "the mean of what clients returned, which is all that secure aggregation shows the server"
    GLOBAL = "the global checkpoint after the round"

    @property
    def of_all(self) -> bool:
        """Whether it is one series of all clients together, rather than one for each client."""
        return self is not CheckpointSource.RETURNED


@dataclass(frozen=True)
class RoundFiles:
    """The files of one round of a series."""

    round: int

    initial: str
    """Name of the checkpoint file sent."""

    final: str
    """Name of the checkpoint file returned."""

    clients: tuple[int, ...]
    """The clients whose update it is."""


@dataclass(frozen=True)
class View:
    """One thing that a threat model looks at. hidden_by: what keeps the federation from showing it, or None."""

    threat_model: str
    source: CheckpointSource
    all_rounds: bool = False
    hidden_by: str | None = None

    @property
    def adversary(self) -> Adversary:
        """Whose eyes it is, as guarantees tell them apart."""
        return "observer" if self.source is CheckpointSource.GLOBAL else "server"

    def shows(self, client: int) -> bool:
        return self.source.of_all == (client == ALL)

    def rounds(self, series: Sequence[RoundFiles]) -> Sequence[RoundFiles]:
        """The rounds of a series that it goes over; their clients' images are the private set."""
        return series if self.all_rounds else series[-1:]

    def observation(
        self, key: ObservationKey, series: Sequence[RoundFiles], present: Sequence[int] = ()
    ) -> RecordedObservation:
        """What it shows of a series, and whose images that holds. present: the clients of the round."""
        rounds = self.rounds(series)
        clients = {client for files in rounds for client in files.clients}
        return RecordedObservation.of(
            key,
            pairs=tuple((files.initial, files.final) for files in rounds),
            clients=tuple(sorted(clients)),
            round_clients=tuple(sorted(clients.union(present))),
            adversary=self.adversary,
        )


class ThreatModel(ABC):
    """Somebody who looks at a federation."""

    name: ClassVar[ThreatModelName]

    @abstractmethod
    def views(self, named: Sequence[str], hides_clients: bool) -> list[View]:
        """What it looks at in every round.

        named: all threat models of the scenario. hides_clients: whether the clients use secure aggregation.
        """


class Server(ThreatModel):
    """The honest-but-curious server."""

    name = "server"

    def views(self, named: Sequence[str], hides_clients: bool) -> list[View]:
        if hides_clients:
            return [
                View(self.name, CheckpointSource.RETURNED, hidden_by=SECURE_AGGREGATION),
                View(self.name, CheckpointSource.SUM),
            ]
        return [View(self.name, CheckpointSource.RETURNED)]


class Observer(ThreatModel):
    """A participant or an eavesdropper, who sees global checkpoints only."""

    name = "observer"

    def views(self, named: Sequence[str], hides_clients: bool) -> list[View]:
        return [View(self.name, CheckpointSource.GLOBAL)]


class History(ThreatModel):
    """Those named beside it, the server where none is, with a memory of all rounds so far.

    Where both the server and the observer see all clients together, it has the server's view: that one has no noise
    and no server step in it yet.
    """

    name = "history"

    def views(self, named: Sequence[str], hides_clients: bool) -> list[View]:
        models = [model for model in (Server(), Observer()) if model.name in named] or [Server()]
        views = [view for model in models for view in model.views(named, hides_clients)]
        first = {view.source.of_all: view for view in reversed(views)}
        return [replace(view, threat_model=self.name, all_rounds=True) for view in first.values()]


class ServerHistory(ThreatModel):
    """The server with a memory of all rounds so far: `history` without the union of all clients of an observer, which
    costs the most where clients change."""

    name = "server_history"

    def views(self, named: Sequence[str], hides_clients: bool) -> list[View]:
        return [replace(view, threat_model=self.name, all_rounds=True) for view in Server().views(named, hides_clients)]


THREAT_MODELS: tuple[ThreatModel, ...] = (Server(), Observer(), History(), ServerHistory())


def all_views(named: Sequence[str], hides_clients: bool) -> list[View]:
    """What the threat models that a scenario names look at."""
    return [view for model in THREAT_MODELS if model.name in named for view in model.views(named, hides_clients)]
