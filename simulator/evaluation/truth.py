"""The truth that scores are measured against: the private images behind an update. No attack ever sees it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks import Pool
from clients.chain import invariances
from clients.data.partition import split_data
from clients.defenses.base import Transformation
from simulator.scenario.scenario import Scenario


@dataclass(frozen=True)
class Truth:
    """The private images of a row, (N, C, H, W) in [0, 1], the pool to single them out of, and the input's mean.

    diagnosed: whether rows get the columns that say how far the update is in the kernel regime. views: what clients
    augment their images by, where they do.
    """

    private: Tensor
    pool: Pool
    pixel_mean: tuple[float, ...]
    seed: int
    diagnosed: bool = True
    views: tuple[Transformation, ...] = ()

    @classmethod
    def of(cls, scenario: Scenario, clients: Sequence[int], round_clients: Sequence[int]) -> "Truth":
        """The private set that `clients` form, in a round in which `round_clients` took part."""
        data = split_data(scenario.data, scenario.partition, scenario.federation.clients, scenario.seed)
        images = {client: data.client(client)[0] for client in round_clients}
        pool = Pool(data.public()[0], torch.cat([images[client] for client in round_clients]))
        private = torch.cat([images[client] for client in clients])
        views = invariances(scenario.chain)
        return cls(private, pool, data.pixel_mean, scenario.seed, scenario.output.diagnostics, views)
