"""Who takes part in a round, and what comes back: the schedule of clients, their replies and their failures."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from attacks.interface.observation import State
from clients.defenses.differential_privacy.guarantee import Guarantee, from_json
from simulator.errors import RunError
from simulator.results.privacy import privacy_columns
from simulator.scenario.scenario import Scenario

REPORTED = ("num-examples", "steps", "first-loss", "last-loss", "seconds")  # metrics of a reply
WHEREABOUTS = ("worker", "pid", "gpu-ids", "device")


@dataclass(frozen=True)
class ClientReply:
    """What a client sent back in a round.

    status: ok, failed or timeout, with the reason in `detail`. message: as Flower delivered it, None where none came.
    """

    client: int
    status: str
    detail: str
    message: Message | None

    @classmethod
    def of(cls, client: int, message: Message | None, timeout: float) -> "ClientReply":
        """Read a message. Flower accepts NaN silently: it is refused here. timeout: seconds that the server waited."""
        if message is None:
            return cls(client, "timeout", f"no reply within federation.timeout = {timeout:g} s", None)
        if message.has_error():
            return cls(client, "failed", " ".join((message.error.reason or "").split())[:300], message)
        read = cls(client, "ok", "", message)
        for name, value in (read.state or {}).items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                reason = f"the client returned NaN or Inf in {name!r}: its training diverged"
                return cls(client, "failed", reason, message)
        return read

    @property
    def healthy(self) -> bool:
        return self.status == "ok"

    @property
    def state(self) -> State | None:
        """Its checkpoint, read from the message each time; None unless the status is ok."""
        if self.message is None or not self.healthy:
            return None
        return self.message.content.array_records["arrays"].to_torch_state_dict()

    @property
    def columns(self) -> dict[str, Any]:
        """What the client reported, as columns of the clients table."""
        columns: dict[str, Any] = {"client": self.client, "status": self.status, "detail": self.detail}
        if self.message is None or not self.message.has_content():
            return columns
        metrics = self.message.content.metric_records["metrics"]
        where, said = (self.message.content.config_records[name] for name in ("where", "defenses"))
        columns |= {name.replace("-", "_"): metrics[name] for name in REPORTED}
        columns |= {name.replace("-", "_"): where[name] for name in WHEREABOUTS}
        return columns | {name: said[name] for name in ("bytes",) if name in said} | privacy_columns(self.guarantees)

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """Of differential privacy, after this round; of a reply that came, healthy or not."""
        if self.message is None or not self.message.has_content():
            return ()
        record = self.message.content.config_records.get("privacy")
        return () if record is None else from_json(str(record["guarantees"]))

    @property
    def distilled(self) -> Tensor | None:
        """The images that the client trained on instead of its own, (M, C, H, W) in [0, 1]: for the scorer."""
        if self.message is None or (record := self.message.content.config_records.get("distilled")) is None:
            return None
        pixels = torch.frombuffer(bytearray(cast(bytes, record["float32"])), dtype=torch.float32)
        return pixels.reshape(cast(list[int], record["shape"]))


class Participation:
    """The clients of one cell: which of them train in a round, and their replies in the order of partition ids.

    Both make the federation reproducible: Flower samples random node ids, and a float sum depends on its order.
    """

    def __init__(self, scenario: Scenario, nodes: dict[int, int]):
        """nodes: partition id -> node id of the clients of this cell."""
        self.scenario, self.nodes = scenario, nodes
        self.partitions = {node: partition for partition, node in nodes.items()}
        self.chosen: list[int] = []

    def grid(self, grid: Grid) -> Grid:
        """The grid as a strategy is to see it: without the clients of other cells."""
        return cast(Grid, CellGrid(grid, self.nodes))

    def readdress(self, round: int, messages: list[Message]) -> list[Message]:
        """The messages of a strategy, sent to clients that the seed chooses: as many, or each by a coin of its own."""
        schedule = random.Random(f"{self.scenario.seed}/{round}")
        if self.scenario.poisson:
            fraction = self.scenario.federation.fraction
            self.chosen = [client for client in sorted(self.nodes) if schedule.random() < fraction]
        else:
            self.chosen = sorted(schedule.sample(sorted(self.nodes), len(messages)))
        first = messages[0]  # all say the same
        kind = first.metadata.message_type
        return [
            Message(content=first.content, message_type=kind, dst_node_id=self.nodes[client]) for client in self.chosen
        ]

    def read(self, messages: Iterable[Message]) -> list[ClientReply]:
        """The reply of every client that was asked in this round, by partition id."""
        received = {self.partitions[message.metadata.src_node_id]: message for message in messages}
        timeout = self.scenario.federation.timeout
        return [ClientReply.of(client, received.get(client), timeout) for client in self.chosen]

    def check_failures(self, round: int, replies: list[ClientReply]) -> None:
        """Raise RunError where more clients failed than the scenario allows, or all of them."""
        if not replies:  # nobody was asked
            return
        failures = [reply for reply in replies if not reply.healthy]
        limit = self.scenario.federation.max_failures
        if len(failures) == len(replies) or len(failures) > limit * len(replies):
            reasons = "; ".join(f"client {reply.client}: {reply.detail}" for reply in failures[:3])
            raise RunError(
                f"round {round}: {len(failures)} of {len(replies)} clients failed, "
                f"more than federation.max_failures = {limit:g} allows ({reasons})"
            )


class CellGrid:
    """A grid that shows a strategy the nodes of one cell only, in the order of their partitions."""

    def __init__(self, grid: Grid, nodes: dict[int, int]):
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> list[int]:
        return [self._nodes[partition] for partition in sorted(self._nodes)]

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)
