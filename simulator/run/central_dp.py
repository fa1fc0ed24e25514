"""Flower's central differential privacy with noise that fits the replies of a round: how many came, and their weights.

Flower takes z · C / m for the noise, m the clients that were asked. FedAvg weighs by images, and a reply may be
missing: what one client can move the mean by is C · max wᵢ / Σ wᵢ over the replies that came, and the noise here is z
times that.
"""

from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from simulator.adversary.statistics import Aggregate, Messages, Wrapped, weights_of
from simulator.scenario.sections import WEIGHT

WRAPPERS = {  # of Flower's, by who clips updates: the server what it received, or the clients what they send
    "server": DifferentialPrivacyServerSideFixedClipping,
    "client": DifferentialPrivacyClientSideFixedClipping,
}


class FittedNoise(Wrapped):
    """Sets the divisor of the noise of Flower's wrapper to Σ wᵢ / max wᵢ: the number of replies of equal weight."""

    def __init__(
        self,
        strategy: Strategy,
        noise_multiplier: float,
        clipping_norm: float,
        num_sampled_clients: int,
        clipping: str,
        expected_clients: float | None = None,
    ):
        """clipping: who clips, as of `WRAPPERS`. expected_clients: given if each client takes part by a coin of its
        own. All weights are one then, and the sum of the updates and its noise are divided by that number: neither who
        came nor how many may scale what is released, and a round in which nobody came releases noise."""
        self.flower = WRAPPERS[clipping](strategy, noise_multiplier, clipping_norm, num_sampled_clients)
        super().__init__(self.flower)
        self.expected_clients = expected_clients
        self.deviation = noise_multiplier * clipping_norm  # of the noise on a sum of weights 1
        self.sent = ArrayRecord()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        self.sent = arrays
        return self.flower.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        replies = list(replies)
        if self.expected_clients is None:
            return self._aggregate(server_round, replies)
        if not replies:
            noise = {n: np.random.normal(0, self.deviation, array.shape) for n, array in _numpy(self.sent).items()}
            return _moved(self.sent, noise, 1 / self.expected_clients), None
        for reply in replies:
            next(iter(reply.content.metric_records.values()))[WEIGHT] = 1
        arrays, metrics = self._aggregate(server_round, replies)
        if arrays is None:
            return arrays, metrics
        before = _numpy(self.sent)
        step = {name: after - before[name] for name, after in _numpy(arrays).items()}
        return _moved(self.sent, step, len(replies) / self.expected_clients), metrics

    def _aggregate(self, server_round: int, replies: list[Message]) -> Aggregate:
        """Return the weighted mean of clipped updates, with noise in proportion to the largest weight."""
        weights = weights_of(replies)
        self.flower.num_sampled_clients = cast(int, sum(weights) / max(weights))  # Flower divides by it, no more
        return self.flower.aggregate_train(server_round, replies)


def _numpy(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


def _moved(record: ArrayRecord, step: dict[str, np.ndarray], factor: float) -> ArrayRecord:
    """Return record + factor · step, in the types of the record."""
    arrays = {name: (array + factor * step[name]).astype(array.dtype) for name, array in _numpy(record).items()}
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
