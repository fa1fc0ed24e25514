"""The truth that scores are measured against: the private images behind an update. No attack ever sees it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from attacks import Knowledge, Observation, Pool, Reconstruction
from attacks.interface.pictures import Normalization
from clients.chain import invariances
from clients.data.partition import split_data
from clients.defenses.base import Transformation
from simulator.results.keys import RecordedObservation
from simulator.scenario.scenario import Scenario

NO_TRUTH = "nobody said what is true: no scores"
NO_OTHERS = "the floor is a grey image: give --public for a better one"
CANDIDATES = "the images of --truth are candidates, and no attack is scored on them"  # as the reason of a row begins


@dataclass(frozen=True)
class Truth:
    """The private images of a row, (N, C, H, W) in [0, 1], the pool to single them out of, and how clients normalize.

    diagnosed: whether rows get the columns that say how far the update is in the kernel regime. views: what clients
    augment their images by, where they do. numbers: (N,) what the samples table calls the images, from 0 where nothing
    is given. no_membership: why membership cannot be scored on them; empty where it can be. more_public: how to get a
    stronger floor. notes: what `detail` has to say of all this. labels: (N,) the classes of the private images, None
    where these are not known.
    """

    private: Tensor
    pool: Pool
    normalization: Normalization
    seed: int
    diagnosed: bool = True
    views: tuple[Transformation, ...] = ()
    numbers: tuple[int, ...] | None = None
    no_membership: str = ""
    more_public: str = "raise data.public"
    notes: tuple[str, ...] = ()
    labels: Tensor | None = None

    @classmethod
    def of(cls, scenario: Scenario, clients: Sequence[int], round_clients: Sequence[int]) -> "Truth":
        """The private set that `clients` form, in a round in which `round_clients` took part."""
        data = split_data(scenario.data, scenario.partition, scenario.federation.clients, scenario.seed)
        shares = {client: data.client(client) for client in round_clients}
        of_round, private = (
            [torch.cat(parts) for parts in zip(*(shares[client] for client in wanted), strict=True)]
            for wanted in (round_clients, clients)
        )
        public = data.public()
        return cls(
            private[0],
            Pool(public[0], of_round[0], public[1], of_round[1]),
            data.normalization,
            scenario.seed,
            scenario.output.diagnostics,
            invariances(scenario.chain),
            labels=private[1],
        )


class Attacked(NamedTuple):
    """An observation, what its adversary was told, and what the attack made of it."""

    recorded: RecordedObservation
    observation: Observation
    knowledge: Knowledge
    found: Reconstruction


class TruthSource(Protocol):
    """Where the truth behind an observation is read, on the worker that scores: small and picklable."""

    def truth(self, attacked: Attacked) -> Truth | str:
        """Where there is none for this observation, why."""


@dataclass(frozen=True)
class ScenarioTruth:
    """The truth of a scenario: the images of the clients whose update it is."""

    scenario: Scenario

    def truth(self, attacked: Attacked) -> Truth:
        return Truth.of(self.scenario, attacked.recorded.clients, attacked.recorded.round_clients)
