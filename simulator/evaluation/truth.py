"""The truth for scores: the private images behind an update. No attack ever sees it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attacks import InputError, Knowledge, Observation, Pool, Reconstruction
from attacks.interface.errors import one_line
from attacks.interface.normalization import Normalization
from clients.chain import invariances
from clients.data.partition import split_data
from clients.defenses.base import Transformation
from clients.time_limit import OutOfTime
from simulator.results.keys import RecordedObservation
from simulator.scenario.scenario import Scenario

NO_TRUTH = "no private images to compare with: no scores"
NO_OTHERS = "the floor is a grey image: give --public for a better one"
CANDIDATES = "the images of --truth are candidates, and no attack is scored on them"  # as the reason of a row begins


@dataclass(frozen=True)
class Truth:
    """The private images of a row, (N, C, H, W) in [0, 1], the pool to single them out of, and how clients normalize.

    diagnosed: whether rows get the columns on the kernel regime.
    views: the clients' augmentations.
    numbers: (N,) of the images in the samples table, default from 0.
    no_membership: why membership cannot be scored; empty if it can.
    more_public: how to get a stronger floor.
    notes: for `detail`.
    labels: (N,) the classes, None if unknown.
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
        """Return the private set of `clients`, in a round in which `round_clients` took part."""
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
    """An observation, the knowledge of its adversary, and the result of the attack."""

    recorded: RecordedObservation
    observation: Observation
    knowledge: Knowledge
    found: Reconstruction


class Measured(NamedTuple):
    """What is measured of an update.

    columns: of the leakage table.
    notes: for `detail`.
    samples: rows of the samples table, one per private image.
    table: a CSV file with the scores of all candidates, None if there are none.
    """

    columns: dict[str, Any]
    notes: list[str]
    samples: Sequence[dict[str, Any]] = ()
    table: bytes | None = None


class TruthSource(Protocol):
    """Reads the truth behind an observation, on the worker that scores: small and picklable."""

    def truth(self, attacked: Attacked) -> Truth | str:
        """Return the truth, or why there is none for this observation."""


@dataclass(frozen=True)
class ScenarioTruth:
    """The truth of a scenario: the images of the clients whose update it is.

    old: of a run that is over, whose images may have moved: then there are no scores, and the reason is told.
    """

    scenario: Scenario
    old: bool = False

    def truth(self, attacked: Attacked) -> Truth | str:
        try:
            return Truth.of(self.scenario, attacked.recorded.clients, attacked.recorded.round_clients)
        except (InputError, OSError) as error:
            if not self.old or isinstance(error, OutOfTime):
                raise
            return f"{NO_TRUTH}; the private images cannot be read ({one_line(error)})"
