"""What a strange federation's messages hold: the checkpoint, the number of images, the client's name."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import Strategy

from simulator.audit.problems import Problems
from simulator.scenario.sections import WEIGHT

NAMES = ("partition-id", "partition_id", "client-id", "client_id", "cid")  # under which clients say who they are

Arrays = dict[str, Array]  # of a checkpoint, by name; strategies replace arrays of a record, and change none


@dataclass(frozen=True)
class Reply:
    """A checkpoint that came back. node: whose. images, name: what the client says of itself."""

    node: int
    arrays: Arrays
    images: int | None
    name: str | int | None


@dataclass
class SeenRound:
    """All that the server saw of a round, as Flower's arrays. sent: the global checkpoint. to: what each node was sent.
    final: the global checkpoint after the round, None where the strategy made none."""

    server_round: int
    sent: Arrays
    to: dict[int, Arrays] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    final: Arrays | None = None


class MessageReader:
    """Reads messages as a strategy writes them: under its keys, or else by what is alike. What it cannot read is a
    problem, and left out."""

    def __init__(self, strategy: Strategy, problems: Problems):
        self.arrays = setting(strategy, "arrayrecord_key", "arrays")
        self.images = setting(strategy, "weighted_by_key", WEIGHT)
        self.problems = problems

    def sent(self, server_round: int, arrays: ArrayRecord, messages: Iterable[Message]) -> SeenRound:
        """A round that begins."""
        seen = SeenRound(server_round, dict(arrays))
        for message in messages:
            node = message.metadata.dst_node_id
            with self.problems.caught("a message could not be read", f"round {server_round}, to node {node}"):
                seen.to[node] = self._checkpoint(message, seen.sent)
        return seen

    def returned(self, seen: SeenRound, messages: Iterable[Message]) -> None:
        """The replies of a round; those with an error are no update."""
        for message in messages:
            node = message.metadata.src_node_id
            with self.problems.caught("a reply could not be read", f"round {seen.server_round}, of node {node}"):
                if node in seen.to and not message.has_error():
                    arrays = self._checkpoint(message, seen.sent)
                    seen.replies.append(Reply(node, arrays, self._images(message), _name(message)))

    def _checkpoint(self, message: Message, like: Mapping[str, Array]) -> Arrays:
        """The arrays that are a checkpoint like this one. ValueError where a message has none."""
        records = message.content.array_records
        if self.arrays in records:
            return dict(records[self.arrays])
        alike = [record for record in records.values() if set(record) == set(like)] or list(records.values())
        if len(alike) != 1:
            raise ValueError(f"{len(records)} records of arrays, none called {self.arrays!r}")
        return dict(alike[0])

    def _images(self, message: Message) -> int | None:
        """How many images the client says it trained on; None where it does not."""
        for record in message.content.metric_records.values():
            value = record.get(self.images)
            if isinstance(value, int | float) and math.isfinite(value) and value >= 1:
                return round(value)
        return None


def _name(message: Message) -> str | int | None:
    """What the client calls itself; None where it does not."""
    content = message.content
    metrics = [record.get(key) for record in content.metric_records.values() for key in NAMES]
    configs = [record.get(key) for record in content.config_records.values() for key in NAMES]
    return next((value for value in (*metrics, *configs) if isinstance(value, str | int)), None)


def setting(strategy: Strategy, name: str, default: str) -> str:
    """An attribute of a strategy, or of the one that it is around."""
    inner: object = strategy
    while inner is not None:
        if isinstance(value := vars(inner).get(name), str):
            return value
        inner = vars(inner).get("strategy")
    return default


def same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Whether two checkpoints are equal bit for bit."""
    return list(one) == list(other) and all(array.data == other[name].data for name, array in one.items())
