"""What Flower strategies around another one share."""

from collections.abc import Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from simulator.scenario.sections import WEIGHT


class Wrapped(Strategy):
    """Around another strategy, which does what a subclass does not change: training has to be said there."""

    def __init__(self, strategy: Strategy):
        self.strategy = strategy

    def summary(self) -> None:
        self.strategy.summary()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)


def weights_of(replies: Sequence[Message]) -> list[float]:
    """What each reply weighs in a mean: its number of images."""
    return [float(str(next(iter(reply.content.metric_records.values()))[WEIGHT])) for reply in replies]
