"""The defense interface: a frozen dataclass of options with hooks, registered by name; a scenario lists them in order.

A client runs `check` of every defense first, then `prepare_data`, `instrument` before its first step, `local_step` on
every batch, and `protect_update` on what it is about to send. The server carries out each `server_half`.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.observation import State
from attacks.interface.seeding import torch_generator
from clients.config import ClientConfig
from clients.defenses.server import ServerHalf
from clients.training import Batch, TrainingLoop

Metrics = dict[str, float]


@dataclass(frozen=True)
class TrainingSet:
    """inputs: (N, C, H, W) in the model's input space. targets: what the loss wants, see `clients.losses`.
    distilled: whether they stand for the client's own images."""

    inputs: Tensor
    targets: Tensor
    distilled: bool = False


@dataclass(frozen=True)
class Encoding:
    """How an update travels. fraction: of its entries that are sent. bits: of each. indexed: whether with positions."""

    fraction: float = 1.0
    bits: int = 32
    indexed: bool = False

    def bytes(self, entries: int) -> int:
        return round(self.fraction * entries * (self.bits + 32 * self.indexed) / 8)


@dataclass(frozen=True)
class FlowerModPath:
    """A Flower mod by its import path, package.module:mod. options: of its constructor, where the mod is a class."""

    path: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DefenseContext:
    """Where a defense acts: one client in one round. model: at the parameters received. memory: survives rounds, one
    dict of plain values for each defense of the chain."""

    config: ClientConfig
    round: int
    client: int
    model: nn.Module
    memory: dict[str, Any] = field(default_factory=dict)

    def generator(self, purpose: str) -> torch.Generator:
        return torch_generator(self.config.seed, f"defense/{purpose}", self.round, self.client)


@dataclass(frozen=True)
class Defense:
    """A defense that does nothing. Subclasses override the hooks they need; none of them changes its arguments."""

    name: ClassVar[str]

    def check(self, context: DefenseContext) -> None:
        """Raise InputError where the defense cannot run with this model and training."""

    def prepare_data(self, data: TrainingSet, context: DefenseContext) -> tuple[TrainingSet, Metrics]:
        """What the client trains on, and what the defense reports of it."""
        return data, {}

    def instrument(self, loop: TrainingLoop, count: int, context: DefenseContext) -> TrainingLoop:
        """Another way to form batches, gradients and steps, for `count` images."""
        return loop

    def local_step(self, batch: Batch, generator: torch.Generator) -> Batch:
        """What one step is taken on."""
        return batch

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        """What is sent instead of Δθ (trained parameters only), and what the defense reports of it."""
        return delta, {}

    def flower_mod(self) -> FlowerModPath | None:
        """The Flower mod that protects the update, where it is one that does."""
        return None

    def encode(self, encoding: Encoding) -> Encoding:
        """How the update travels, given how it would without this defense."""
        return encoding

    def server_half(self) -> ServerHalf:
        """What the defense changes on the server: by default nothing."""
        return ServerHalf()

    def privacy_spent(self, context: DefenseContext, steps: int, count: int) -> Metrics:
        """{"epsilon": …} after this round, where the defense gives a guarantee. steps: optimizer steps of the round.
        count: images that were trained on."""
        return {}

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        """What an adversary who knows that this defense is in force may use, as fields of `attacks.Knowledge`."""
        return {}


DEFENSES: dict[str, type[Defense]] = {}
DefenseClass = TypeVar("DefenseClass", bound=type[Defense])


def register(defense: DefenseClass) -> DefenseClass:
    """Class decorator: make a defense known by its `name`."""
    DEFENSES[defense.name] = defense
    return defense


def check_positive(defense: Defense, *names: str, at_most: float = float("inf")) -> None:
    """Raise InputError for options that are not in (0, at_most], or not finite; None passes."""
    for name in names:
        value = getattr(defense, name)
        if value is not None and not (0 < value <= at_most and math.isfinite(value)):
            bound = "positive and finite" if at_most == float("inf") else f"above 0 and at most {at_most:g}"
            raise InputError(f"defense {defense.name!r}: {name} is {value:g}, it has to be {bound}")


def check_below_one(defense: Defense, name: str) -> None:
    """Raise InputError for an option that is not in (0, 1)."""
    value = getattr(defense, name)
    if not 0 < value < 1:
        raise InputError(f"defense {defense.name!r}: {name} is {value:g}, it has to be above 0 and below 1")


def norm(delta: State) -> Tensor:
    """‖Δθ‖₂ over all tensors, a scalar in float64."""
    return torch.stack([value.double().square().sum() for value in delta.values()]).sum().sqrt()


def scaled(delta: State, factor: float | Tensor) -> State:
    return {name: (value * factor).to(value.dtype) for name, value in delta.items()}
