"""Flower mods as defenses of the update: local differential privacy, and any other by its import path.

A mod is called as Flower calls it, with the message that the client received; what it wraps is the reply so far, so
that it acts at its place in the chain. This module names mods and does not import Flower: `clients/client_app.py` runs
them.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from attacks.interface.errors import InputError
from clients.defenses.base import Defense, Encoding, Metrics, Setting, positive, register


@dataclass(frozen=True)
class FlowerMod(Defense):
    """path: package.module:mod, a mod or a class whose instances are mods. options: of that class."""

    name: ClassVar[str] = "flower_mod"

    path: str
    options: dict[str, Any] = field(default_factory=dict)

    def mod(self) -> tuple[str, dict[str, Any]]:
        """(import path, options of its constructor)."""
        return self.path, self.options


@register
@dataclass(frozen=True)
class LocalDP(Defense):
    """Flower's LocalDpMod: the update clipped to `clipping_norm`, with Gaussian noise of standard deviation
    sensitivity · √(2 ln(1.25/δ)) / ε on every entry. epsilon, delta: of one round; rounds add up (basic composition).

    sensitivity: default 2 · clipping_norm, how far two clipped updates can be apart.
    """

    name: ClassVar[str] = "local_dp"

    clipping_norm: float = 1.0
    epsilon: float = 8.0
    delta: float = 1e-5
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        positive(self, "clipping_norm", "epsilon", "sensitivity")
        if not 0 < self.delta < 1:
            raise InputError(f"defense 'local_dp': delta is {self.delta:g}, it has to be above 0 and below 1")

    def mod(self) -> tuple[str, dict[str, Any]]:
        sensitivity = 2 * self.clipping_norm if self.sensitivity is None else self.sensitivity
        options = {"clipping_norm": self.clipping_norm, "sensitivity": sensitivity}
        return "flwr.clientapp.mod:LocalDpMod", {**options, "epsilon": self.epsilon, "delta": self.delta}

    @property
    def noise_std(self) -> float:
        return float(self.mod()[1]["sensitivity"] * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon)

    def encode(self, encoding: Encoding) -> Encoding:
        return Encoding()

    def spent(self, setting: Setting, steps: int, count: int) -> Metrics:
        setting.memory["rounds"] = setting.memory.get("rounds", 0) + 1
        return {"epsilon": self.epsilon * setting.memory["rounds"]}

    def public_facts(self) -> dict[str, float]:
        return {"clip_norm": self.clipping_norm, "noise_std": self.noise_std}
