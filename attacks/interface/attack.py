"""The attack interface: one frozen dataclass of options per attack, registered by name."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from attacks.interface.devices import choose_device
from attacks.interface.errors import InputError, nearest
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation

Progress = Callable[[int, int, float], None]
"""Called with (iterations done, iterations in all, current loss)."""


def silent(done: int, total: int, loss: float) -> None:
    """The progress callback of those who do not look."""


def report_restart(progress: Progress, before: int, total: int, done: int, loss: float) -> None:
    """Report to `progress` from a restart that has `before` iterations of others before it; to be bound partially."""
    progress(before + done, total, loss)


@dataclass(frozen=True)
class Reconstruction:
    """What an attack returns, best candidate first.

    images: (M, C, H, W) in the model's input space. residual: (M,), lower is surer; each attack says what it is.
    duals: (V, M, K) for V kernels and K outputs, where the attack has them. pixel_mean: what has to be added to
    `images` to get pixels in [0, 1], as the attacker knows or estimates it. relative_residual: ‖Δθ − Σ‖ / ‖Δθ‖.
    """

    images: Tensor
    residual: Tensor
    pixel_mean: tuple[float, ...]
    duals: Tensor | None = None
    num_inferred: int | None = None
    relative_residual: float = float("nan")
    loss_trace: tuple[tuple[int, float], ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    facts: dict[str, float] = field(default_factory=dict)

    def pixels(self) -> Tensor:
        """Images in [0, 1], clamped: (M, C, H, W)."""
        mean = torch.tensor(self.pixel_mean, dtype=self.images.dtype).view(1, -1, 1, 1)
        return (self.images.cpu() + mean).clamp(0, 1)

    def ranked(self) -> "Reconstruction":
        """The same candidates, smallest residual first, on the CPU; images, residuals and duals in float32."""
        residual = self.residual.detach().float().cpu()
        order = residual.argsort(stable=True)
        return replace(
            self,
            images=self.images.detach().float().cpu()[order],
            residual=residual[order],
            duals=None if self.duals is None else self.duals.detach().float().cpu()[:, order],
        )


class Attack(ABC):
    """One attack: a frozen dataclass whose fields are its options. It sees an observation and what it was told, and
    nothing else.

    Callers use `run`. An attack's own file holds `reconstruct`, its mathematics, and `check`.
    """

    name: ClassVar[str]

    def run(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> Reconstruction:
        """Check, attack, and complete the result: what every attack has in common.

        generator: of every random number that the attack draws, on the CPU. The caller's network is neither moved nor
        changed. Returns the candidates with the smallest residual first, on the CPU, images in float32. Raises
        InputError where the attack cannot run.
        """
        start = time.perf_counter()
        self.check(observation, knowledge)
        device = choose_device(getattr(self, "device", "cpu"))
        found = self.reconstruct(observation.with_own_model(device), knowledge, generator, progress)
        return replace(found.ranked(), seconds=time.perf_counter() - start)

    def check(self, observation: Observation, knowledge: Knowledge) -> None:
        """Raise InputError where the attack cannot run on this network with this knowledge; no update is looked at."""
        return

    @abstractmethod
    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """What the attack makes of a checked observation, whose network is its own: on its device, in evaluation mode.

        Candidates stand in any order, on any device; `run` completes the result.
        """


ATTACKS: dict[str, type[Attack]] = {}
AttackClass = TypeVar("AttackClass", bound=type[Attack])


def register(attack: AttackClass) -> AttackClass:
    """Class decorator: make an attack known by its `name`."""
    ATTACKS[attack.name] = attack
    return attack


def check_options(name: str, options: Iterable[str]) -> None:
    """Raise InputError, with the nearest valid name, for an unknown attack or option."""
    if name not in ATTACKS:
        raise InputError(f"unknown attack {name!r}{nearest(name, sorted(ATTACKS))}")
    known = option_names(name)
    for option in options:
        if option not in known:
            raise InputError(f"attack {name!r} has no option {option!r}{nearest(option, known)}")


def option_names(name: str) -> list[str]:
    """The options of a registered attack, which are the fields of its dataclass."""
    return [option.name for option in fields(cast(Any, ATTACKS[name]))]


def get_attack(name: str, **options: object) -> Attack:
    """The attack called `name` with its options set."""
    check_options(name, options)
    return ATTACKS[name](**options)
