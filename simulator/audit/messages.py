"""What a strange federation's messages hold: the checkpoint, the number of images, the client's name."""

import math
from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import Strategy

from simulator.scenario.sections import WEIGHT

NAMES = ("partition-id", "partition_id", "client-id", "client_id", "cid")  # under which clients say who they are


def setting(strategy: Strategy, name: str, default: str) -> str:
    """An attribute of a strategy, or of the one that it is around."""
    inner: object = strategy
    while inner is not None:
        if isinstance(value := vars(inner).get(name), str):
            return value
        inner = vars(inner).get("strategy")
    return default


class MessageReader:
    """Reads messages as a strategy writes them: under its keys, or else by what is alike."""

    def __init__(self, strategy: Strategy):
        self.arrays = setting(strategy, "arrayrecord_key", "arrays")
        self.images = setting(strategy, "weighted_by_key", WEIGHT)

    def checkpoint(self, message: Message, like: Mapping[str, Array]) -> ArrayRecord:
        """The arrays that are a checkpoint like this one. ValueError where a message has none."""
        records = message.content.array_records
        if self.arrays in records:
            return records[self.arrays]
        alike = [record for record in records.values() if set(record) == set(like)] or list(records.values())
        if len(alike) != 1:
            raise ValueError(f"{len(records)} records of arrays, none called {self.arrays!r}")
        return alike[0]

    def num_images(self, message: Message) -> int | None:
        """How many images the client says it trained on; None where it does not."""
        for record in message.content.metric_records.values():
            value = record.get(self.images)
            if isinstance(value, int | float) and math.isfinite(value) and value >= 1:
                return round(value)
        return None

    def name(self, message: Message) -> str | int | None:
        """What the client calls itself; None where it does not."""
        content = message.content
        metrics = [record.get(key) for record in content.metric_records.values() for key in NAMES]
        configs = [record.get(key) for record in content.config_records.values() for key in NAMES]
        return next((value for value in (*metrics, *configs) if isinstance(value, str | int)), None)


def same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    """Whether two records hold the same arrays, bit for bit."""
    return one is other or (list(one) == list(other) and all(one[name].data == other[name].data for name in one))
