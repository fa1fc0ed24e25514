"""The defense interface: a frozen dataclass of options with hooks, registered by name; a scenario lists them in order.

A client runs, in this order: `prepare_data` of every defense, `check` and `instrument` before its first step,
`local_step` on every batch, `protect_update` of every defense on what it is about to send. What a defense does on the
server is in `simulator/strategies.py`, which wraps Flower's.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.observation import State
from attacks.interface.seeding import torch_generator

if TYPE_CHECKING:
    from clients.config import ClientConfig

Metrics = dict[str, float]


@dataclass(frozen=True)
class TrainingSet:
    """inputs: (N, C, H, W) in the model's input space. targets: what the loss wants, see `clients.targets`.
    distilled: whether they stand for the client's own images."""

    inputs: Tensor
    targets: Tensor
    distilled: bool = False


@dataclass(frozen=True)
class Batch:
    """inputs: (B, C, H, W). targets: alternatives, each with its weight; the loss is their weighted sum."""

    inputs: Tensor
    targets: tuple[tuple[float, Tensor], ...]


@dataclass(frozen=True)
class LocalRun:
    """What local training is made of. batches: one epoch of index tensors into the N images, None for all of them."""

    predict: Callable[[Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    batches: Callable[[], Iterable[Tensor | None]]


@dataclass(frozen=True)
class Encoding:
    """How an update travels. fraction: of its entries that are sent. bits: of each. indexed: whether with positions."""

    fraction: float = 1.0
    bits: int = 32
    indexed: bool = False

    def bytes(self, entries: int) -> int:
        return round(self.fraction * entries * (self.bits + 32 * self.indexed) / 8)


@dataclass(frozen=True)
class Setting:
    """Where a defense acts: one client in one round. model: at the parameters received. memory: survives rounds, one
    dict of plain values for each defense of the chain."""

    config: "ClientConfig"
    round: int
    client: int
    model: nn.Module
    memory: dict[str, Any] = field(default_factory=dict)

    def generator(self, purpose: str) -> torch.Generator:
        return torch_generator(self.config.seed, f"defense/{purpose}", self.round, self.client)


@dataclass(frozen=True)
class Defense:
    """Does nothing. Subclasses override the hooks they need.

    hides_clients: the server sees only the sum of a round's updates. flower_mod: a Flower mod that protects the update.
    """

    name: ClassVar[str]
    hides_clients: ClassVar[bool] = False

    def check(self, setting: Setting) -> None:
        """Raise InputError where the defense cannot run with this model and training."""

    def prepare_data(self, data: TrainingSet, setting: Setting) -> tuple[TrainingSet, Metrics]:
        """What the client trains on."""
        return data, {}

    def instrument(self, run: LocalRun, count: int, setting: Setting) -> LocalRun:
        """Another way to form batches, gradients and steps, for `count` images."""
        return run

    def local_step(self, batch: Batch, generator: torch.Generator) -> Batch:
        """What one step is taken on."""
        return batch

    def protect_update(self, delta: State, setting: Setting) -> tuple[State, Metrics]:
        """What is sent instead of Δθ; trained parameters only."""
        return delta, {}

    def encode(self, encoding: Encoding) -> Encoding:
        return encoding

    def spent(self, setting: Setting, steps: int, count: int) -> Metrics:
        """{"epsilon": …} after this round, where the defense gives a guarantee. steps: optimizer steps of the round."""
        return {}

    def public_facts(self) -> dict[str, float]:
        """What an adversary who knows that this defense is in force may use, as fields of `attacks.Knowledge`."""
        return {}


DEFENSES: dict[str, type[Defense]] = {}
DefenseClass = TypeVar("DefenseClass", bound=type[Defense])


def register(defense: DefenseClass) -> DefenseClass:
    """Class decorator: make a defense known by its `name`."""
    DEFENSES[defense.name] = defense
    return defense


def positive(defense: Defense, *names: str, at_most: float = float("inf")) -> None:
    """Raise InputError for options that are not in (0, at_most], or not finite."""
    for name in names:
        value = getattr(defense, name)
        if value is not None and not (0 < value <= at_most and math.isfinite(value)):
            bound = "positive and finite" if at_most == float("inf") else f"above 0 and at most {at_most:g}"
            raise InputError(f"defense {defense.name!r}: {name} is {value:g}, it has to be {bound}")


def norm(delta: State) -> Tensor:
    """‖Δθ‖₂ over all tensors, a scalar in float64."""
    return torch.stack([value.double().square().sum() for value in delta.values()]).sum().sqrt()


def scaled(delta: State, factor: float | Tensor) -> State:
    return {name: (value * factor).to(value.dtype) for name, value in delta.items()}


__all__ = ["DEFENSES", "Batch", "Defense", "Encoding", "LocalRun", "Setting", "TrainingSet", "replace"]
