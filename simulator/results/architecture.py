"""Which network the checkpoints of a cell belong to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter
from torch import nn

from attacks import Observation
from attacks.interface.observation import State
from clients.config import ModelConfig
from clients.models import build_model
from simulator.results.keys import RecordedObservation

Side = Annotated[int, Field(ge=1, le=2**16)]  # of an image, of the outputs


@dataclass(frozen=True)
class _ArchitectureFile:
    """`architecture.json`: all that an attack needs of the scenario."""

    model: ModelConfig
    shape: tuple[Side, Side, Side]
    outputs: Side
    seed: int


ARCHITECTURE = TypeAdapter(_ArchitectureFile)


@dataclass(frozen=True)
class Architecture:
    """Which network the checkpoints of a cell belong to: what builds it anywhere, small and picklable.

    config: a `ModelConfig` as JSON. shape: (C, H, W) of its input.
    """

    config: str
    shape: tuple[int, int, int]
    outputs: int
    seed: int

    def model(self) -> nn.Module:
        """With weights that mean nothing."""
        return build_model(ModelConfig.model_validate_json(self.config), self.shape, self.outputs, self.seed)

    def observation(self, recorded: RecordedObservation, states: Mapping[str, State]) -> Observation:
        """states: of all of its files, by their names."""
        key, pairs = recorded.key, tuple((states[initial], states[final]) for initial, final in recorded.pairs)
        return Observation(self.model(), pairs, self.shape, key.round, key.client, key.threat_model)
