"""Who takes part in a round, and what comes back: the schedule of clients, their replies and their failures."""

import random
from collections.abc import Iterable, Mapping
from typing import cast

from flwr.app import Array, Message
from flwr.serverapp import Grid

from simulator.adversary.reply import ARRAYS, ClientReply
from simulator.errors import RunError
from simulator.scenario.scenario import Scenario


class Participation:
    """The clients of one cell: which of them train in a round, and their replies in the order of partition ids.

    Both make the federation reproducible: Flower samples random node ids, and a float sum depends on its order.
    """

    def __init__(self, scenario: Scenario, nodes: dict[int, int]):
        """nodes: partition id -> node id of the clients of this cell."""
        self.scenario, self.nodes = scenario, nodes
        self.partitions = {node: partition for partition, node in nodes.items()}
        self.chosen: list[int] = []
        self.sent: Mapping[str, Array] = {}  # in this round

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
        self.sent = dict(first.content.array_records.get(ARRAYS, {}))
        kind = first.metadata.message_type
        return [
            Message(content=first.content, message_type=kind, dst_node_id=self.nodes[client]) for client in self.chosen
        ]

    def read(self, messages: Iterable[Message]) -> list[ClientReply]:
        """The reply of every client that was asked in this round, by partition id.

        Of a client that is lost, Flower's SuperLink says so itself: that message comes from no node of ours.
        """
        received = {self.partitions.get(message.metadata.src_node_id): message for message in messages}
        timeout = self.scenario.federation.timeout
        return [ClientReply.of(client, received.get(client), self.sent, timeout) for client in self.chosen]

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
