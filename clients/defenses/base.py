"""The defense interface: a frozen dataclass of options with hooks, registered by name; a scenario lists them in order.

A client runs `check` of every defense first, then `prepare_data`, `instrument` before its first step, `local_step` on
every batch, and `protect_update` on what it is about to send. The server carries out each `server_half`, which is plain
values: nothing here knows Flower, `clients/client_app.py` and `simulator/run/strategies.py` do.
"""

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.interface.options import check_values
from attacks.interface.plugins import Registry, subclass_of
from attacks.interface.torch_tools import torch_generator
from clients.batch_norm import moving_statistics
from clients.config import ClientConfig, TrainingConfig
from clients.defenses.guarantee import Adversary, Guarantee
from clients.training import Batch, TrainingLoop

Metrics = dict[str, float]
Transformation = Callable[[Tensor], Tensor]  # of images: (N, C, H, W) -> (N, C, H, W)


@dataclass(frozen=True)
class TrainingSet:
    """What a client trains on.

    inputs: (N, C, H, W) in the model's input space.
    targets: what the loss wants, see `clients.training`.
    distilled: whether they stand for the client's own images.
    """

    inputs: Tensor
    targets: Tensor
    distilled: bool = False


@dataclass(frozen=True)
class Encoding:
    """The encoding of an update.

    fraction: of its entries that are sent.
    bits: of each.
    indexed: whether with positions.
    """

    fraction: float = 1.0
    bits: int = 32
    indexed: bool = False

    def bytes(self, entries: int) -> int:
        return round(self.fraction * entries * (self.bits + 32 * self.indexed) / 8)


@dataclass(frozen=True)
class ServerHalf:
    """The changes of a defense on the server.

    strategy: the Flower strategy that is wrapped around the scenario's, by its class name or as package.module:class;
        "" for none.
    options: further keyword arguments of its constructor, beside the wrapped strategy and, if it asks for
        `num_sampled_clients`, the number of clients of a round.
    hides_clients: the server learns the sum of a round's updates and no single one.
    needs_single_updates: the server has to see each client's update.
    if_hidden: the end of the message that refuses a chain which hides them.
    poisson: each client takes part in a round by a coin of its own, with probability `federation.fraction`, instead of
        a fixed number of them.
    """

    strategy: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    hides_clients: bool = False
    needs_single_updates: bool = False
    if_hidden: str = "no update of a single client"
    poisson: bool = False


@dataclass(frozen=True)
class DefenseContext:
    """The place where a defense acts: one client in one round.

    model: at the parameters received, and trained in place.
    received: those parameters by name.
    memory: plain values of this defense that survive rounds.
    """

    config: ClientConfig
    round: int
    client: int
    model: nn.Module
    memory: dict[str, Any] = field(default_factory=dict)
    received: State = field(default_factory=dict)

    def generator(self, purpose: str) -> torch.Generator:
        return torch_generator(self.config.seed, f"defense/{purpose}", self.round, self.client)

    @property
    def statistics(self) -> list[str]:
        """Names of BatchNorm's statistics that the client's training moves; no defense of the update changes them."""
        return moving_statistics(self.model, self.config.training.batch_norm)


@dataclass(frozen=True)
class DefenseEnvironment:
    """The federation around a defense.

    chain: all defenses, itself among them, in their order.
    plain_mean: whether the strategy replaces the global checkpoint by the mean of the replies, weighted by images.
    """

    chain: tuple["Defense", ...]
    training: TrainingConfig
    strategy: str = "FedAvg"
    plain_mean: bool = True


@dataclass(frozen=True)
class ObservedUpdate:
    """What everybody knows of the update that an adversary sees in one round.

    config: of the clients.
    sizes: private images of each client whose update is in it, as reported.
    shares: the weight of each: (1.0,) for the update of a single client, the weights in the mean for the global
        checkpoint.
    """

    config: ClientConfig
    adversary: Adversary
    sizes: tuple[int, ...]
    shares: tuple[float, ...]

    def averaged(self, *deviations: float) -> float:
        """Return the standard deviation of independent noise in the update, given that of each client (or of all)."""
        each = deviations if len(deviations) > 1 else deviations * len(self.shares)
        return math.hypot(*(share * one for share, one in zip(self.shares, each, strict=True)))


@dataclass(frozen=True)
class Defense:
    """A defense that does nothing. Subclasses override the hooks they need; none of them changes its arguments.

    mixes_images: whether an image that clients train on behind it depends on several private images at once.
    tells_noise: the adversaries for whom `noise_told` has something, whatever the options.
    """

    kind: ClassVar[str] = "defense"
    name: ClassVar[str]
    mixes_images: ClassVar[bool] = False
    tells_noise: ClassVar[tuple[Adversary, ...]] = ()

    def __post_init__(self) -> None:
        """Raise InputError for an option that is out of its range."""
        check_values(self)

    def conflict(self, around: DefenseEnvironment) -> str:
        """Return why it cannot keep its promise there, with a remedy, to refuse the scenario; "" if it can."""
        return ""

    def check(self, context: DefenseContext) -> None:
        """Raise InputError if the defense cannot run with this model and training."""

    def prepare_data(self, data: TrainingSet, context: DefenseContext) -> tuple[TrainingSet, Metrics]:
        """Return the data to train on, and metrics."""
        return data, {}

    def instrument(self, loop: TrainingLoop, count: int, context: DefenseContext) -> TrainingLoop:
        """Return another way to form batches, gradients and steps, for `count` images."""
        return loop

    def local_step(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return the batch to take a step on."""
        return batch

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        """Return the update to send instead of Δθ (trained parameters only), and metrics."""
        return delta, {}

    def withheld_statistics(self, context: DefenseContext) -> list[str]:
        """Name the statistics of BatchNorm that stay with the client: it sends those that it received."""
        return []

    def flower_mod(self) -> "FlowerMod | None":
        """Return the Flower mod that protects the update, if one does."""
        return None

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        """Return how the update travels. encoding: without this defense."""
        return encoding

    def server_half(self) -> ServerHalf:
        """Return what the defense changes on the server: by default nothing."""
        return ServerHalf()

    def privacy_spent(self, context: DefenseContext, steps: int, count: int) -> Guarantee | None:
        """Return the guarantee after so many optimizer steps of this round on `count` images, if there is one."""
        return None

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        """Return the fields of `attacks.Knowledge` that an adversary has who knows that this defense is in force."""
        return {}

    def tells_noise_to(self, adversary: Adversary) -> bool:
        """Return whether `noise_told` has something for that adversary."""
        return adversary in self.tells_noise

    def noise_told(self, observed: ObservedUpdate) -> float | None:
        """Return the standard deviation of its noise on an entry of the update, if that follows from public facts."""
        return None

    def invariances(self) -> tuple[Transformation, ...]:
        """Return the transformations, except noise, of an image before a step: an attack may return any such view."""
        return ()


@dataclass(frozen=True)
class FlowerMod(Defense):
    """Any Flower mod as a defense of the update.

    path: package.module:mod, a mod or a class whose instances are mods.
    options: of that class.

    A mod is called as Flower calls it, with the message that the client received; what it wraps is the reply so far, so
    that it acts at its place in the chain.
    """

    name: ClassVar[str] = "flower_mod"

    path: str
    options: dict[str, Any] = field(default_factory=dict)

    def flower_mod(self) -> "FlowerMod":
        return self


DEFENSES: Registry[type[Defense]] = Registry(
    "defense", "fedspill.defenses", subclass_of(Defense), " (a Flower mod is named package.module:mod)"
)
DefenseClass = TypeVar("DefenseClass", bound=type[Defense])


def register(defense: DefenseClass) -> DefenseClass:
    """Make a defense class known by its `name`. Raise InputError if another defense has that name."""
    DEFENSES.add(defense)
    return defense


def norm(delta: State) -> Tensor:
    """Return ‖Δθ‖₂ over all tensors, a scalar in float64."""
    return torch.stack([value.double().square().sum() for value in delta.values()]).sum().sqrt()


def clipped(delta: State, bound: float) -> tuple[State, float]:
    """Return (Δθ · factor, factor) with factor = min(1, bound / ‖Δθ‖₂)."""
    size = float(norm(delta))
    factor = min(1.0, bound / size) if size else 1.0
    return {name: (value * factor).to(value.dtype) for name, value in delta.items()}, factor


def flat(delta: State) -> Tensor:
    """Return all entries of an update in one vector."""
    return torch.cat([value.flatten() for value in delta.values()])


def like(entries: Tensor, delta: State) -> State:
    """Return the entries of one vector as the tensors of an update, in its types."""
    parts = entries.split([value.numel() for value in delta.values()])
    return {
        name: part.view(value.shape).to(value.dtype) for (name, value), part in zip(delta.items(), parts, strict=True)
    }


def rounded(delta: State, context: DefenseContext, to_level: Callable[[Tensor], Tensor]) -> State:
    """Return Δθ as it is after the parameters that are sent are rounded. to_level: rounds parameters, in float64."""
    sent = {}
    for name, value in delta.items():
        received = context.received.get(name, torch.zeros_like(value)).double()
        sent[name] = (to_level(received + value) - received).to(value.dtype)
    return sent


def as_text(state: State) -> str:
    """Return tensors as base64 text of a safetensors file: what a client remembers between rounds travels as JSON."""
    return base64.b64encode(save({name: value.detach().cpu().contiguous() for name, value in state.items()})).decode()


def from_text(text: str) -> State:
    """Return the tensors of `as_text`, bit by bit."""
    return load(base64.b64decode(text))
