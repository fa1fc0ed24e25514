"""Wrap Flower strategies: `Wrapped` is the base of our wrappers, `StatisticsApart` averages BatchNorm's statistics.

Flower's strategies treat every array alike. A server optimizer would take steps of its own in a variance, which may
become negative, central differential privacy would clip and noise a counter of batches, and a mean makes a float of it.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from simulator.scenario.sections import WEIGHT

Messages = Iterable[Message]
Aggregate = tuple[ArrayRecord | None, MetricRecord | None]
"""What a strategy makes of the replies of a round: the global checkpoint, and metrics."""


class Wrapped(Strategy):
    """Does as another strategy. A subclass says what it does in training."""

    def __init__(self, strategy: Strategy):
        self.strategy = strategy

    def summary(self) -> None:
        self.strategy.summary()

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Messages) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)


def weights_of(replies: Sequence[Message]) -> list[float]:
    """Return the weight of each reply in a mean: its number of images."""
    return [float(str(next(iter(reply.content.metric_records.values()))[WEIGHT])) for reply in replies]


ARRAYS = "arrays"  # the record of a message that holds the checkpoint


class StatisticsApart(Wrapped):
    """Shows a strategy the parameters only. Buffers become their mean over the replies, weighted by images, computed in
    float64 and returned in the type that they were sent in."""

    def __init__(self, strategy: Strategy, buffers: Sequence[str]):
        """buffers: names of the entries of a checkpoint that no client trains."""
        super().__init__(strategy)
        self.buffers = frozenset(buffers)
        self.sent: dict[str, Array] = {}

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        self.sent = dict(arrays)
        messages = list(self.strategy.configure_train(server_round, self._parameters(arrays), config, grid))
        for message in messages:
            message.content[ARRAYS] = self._whole(message.content.array_records[ARRAYS], self.sent)
        return messages

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        replies = list(replies)
        buffers = self._mean(replies) if replies else self.sent
        for reply in replies:
            reply.content[ARRAYS] = self._parameters(reply.content.array_records[ARRAYS])
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        return (None if arrays is None else self._whole(arrays, buffers)), metrics

    def _parameters(self, arrays: Mapping[str, Array]) -> ArrayRecord:
        return ArrayRecord({name: array for name, array in arrays.items() if name not in self.buffers})

    def _whole(self, parameters: Mapping[str, Array], buffers: Mapping[str, Array]) -> ArrayRecord:
        return ArrayRecord({name: (buffers if name in self.buffers else parameters)[name] for name in self.sent})

    def _mean(self, replies: Sequence[Message]) -> ArrayRecord:
        records = [reply.content.array_records[ARRAYS] for reply in replies]
        weights = weights_of(replies)
        means = {
            name: Array(np.asarray(np.average([record[name].numpy() for record in records], axis=0, weights=weights)))
            for name in self.buffers
        }
        return in_types_of(self.sent, means)


def in_types_of(sent: Mapping[str, Array], mean: Mapping[str, Array]) -> ArrayRecord:
    """Return a mean of checkpoints with every entry in the type that it was sent in: counters are rounded."""
    found = {}
    for name, array in mean.items():
        values, dtype = array.numpy(), sent[name].numpy().dtype
        found[name] = Array(np.asarray(values if np.issubdtype(dtype, np.floating) else np.rint(values)).astype(dtype))
    return ArrayRecord(found)


def buffers_of(model: nn.Module) -> list[str]:
    """Return the names of the entries of a checkpoint that are no parameters."""
    parameters = {name for name, _ in model.named_parameters()}
    return [name for name in model.state_dict() if name not in parameters]
