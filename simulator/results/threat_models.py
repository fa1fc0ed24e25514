"""Threat models: who looks at which checkpoints of a round, and whose images the update then holds.

| threat model | looks at, in a round | private set |
|---|---|---|
| `server` | what each client returned | the client's images |
| `server`, secure aggregation | the sum of what the clients returned | the images of all clients of the round |
| `observer` | the global checkpoint before and after the round | the images of all clients of the round |
| `history` | what the models beside it look at (alone: `server`), in all rounds so far | the images of all who joined |
| `server_history` | what `server` looks at, in all rounds so far, whoever is named beside it | as above |

A further threat model is a function in this file, its entry in `THREAT_MODELS` and its name in `ThreatModelName`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from clients.defenses.guarantee import Adversary
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
    """The files of one round of a series.

    initial: name of the checkpoint file sent.
    final: name of the checkpoint file returned.
    clients: the clients whose update it is.
    """

    round: int
    initial: str
    final: str
    clients: tuple[int, ...]


@dataclass(frozen=True)
class View:
    """A series of checkpoints that a threat model looks at.

    hidden_by: why the federation does not show it, or None.
    """

    threat_model: str
    source: CheckpointSource
    all_rounds: bool = False
    hidden_by: str | None = None

    @property
    def adversary(self) -> Adversary:
        """The adversary against whom guarantees have to hold."""
        return "observer" if self.source is CheckpointSource.GLOBAL else "server"

    def shows(self, client: int) -> bool:
        return self.source.of_all == (client == ALL)

    def observation(
        self, key: ObservationKey, series: Sequence[RoundFiles], present: Sequence[int] = ()
    ) -> RecordedObservation:
        """Return its observation of a series. present: the clients of the round."""
        rounds = series if self.all_rounds else series[-1:]  # that it looks at: their clients' images are private
        clients = {client for files in rounds for client in files.clients}
        return RecordedObservation.of(
            key,
            pairs=tuple((files.initial, files.final) for files in rounds),
            clients=tuple(sorted(clients)),
            round_clients=tuple(sorted(clients.union(present))),
            adversary=self.adversary,
        )


def server(named: Collection[str], hides_clients: bool) -> list[View]:
    """The honest-but-curious server."""
    if hides_clients:
        return [
            View("server", CheckpointSource.RETURNED, hidden_by=SECURE_AGGREGATION),
            View("server", CheckpointSource.SUM),
        ]
    return [View("server", CheckpointSource.RETURNED)]


def observer(named: Collection[str], hides_clients: bool) -> list[View]:
    """A participant or an eavesdropper, who sees global checkpoints only."""
    return [View("observer", CheckpointSource.GLOBAL)]


def history(named: Collection[str], hides_clients: bool) -> list[View]:
    """The server and the observer as far as they are named beside it, else the server, with a memory of all rounds.

    Where both see all clients together, it has the server's view: that one has no noise and no server step in it yet.
    """
    views = server(named, hides_clients) if "server" in named or "observer" not in named else []
    views += observer(named, hides_clients) if "observer" in named else []
    first = {view.source.of_all: view for view in reversed(views)}
    return [replace(view, threat_model="history", all_rounds=True) for view in first.values()]


def server_history(named: Collection[str], hides_clients: bool) -> list[View]:
    """The server with a memory of all rounds: `history` without an observer's union of all clients, which costs the
    most where clients change."""
    return [replace(view, threat_model="server_history", all_rounds=True) for view in server(named, hides_clients)]


THREAT_MODELS: dict[ThreatModelName, Callable[[Collection[str], bool], list[View]]] = {
    "server": server,
    "observer": observer,
    "history": history,
    "server_history": server_history,
}
"""Each returns what it looks at in every round, from the names of all threat models of the scenario and whether the
clients use secure aggregation."""


def all_views(named: Collection[str], hides_clients: bool) -> list[View]:
    """Return what the threat models that a scenario names look at."""
    return [view for name, views in THREAT_MODELS.items() if name in named for view in views(named, hides_clients)]
