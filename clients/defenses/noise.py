"""Gaussian noise on the update, relative to its size: no guarantee, the baseline of those that have one."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.interface.observation import State
from attacks.interface.options import check_values
from clients.defenses.base import Defense, DefenseContext, Encoding, Metrics, norm, register


@register
@dataclass(frozen=True)
class Noise(Defense):
    """scale: expected norm of the noise, relative to ‖Δθ‖₂."""

    name: ClassVar[str] = "noise"

    scale: float = 0.1

    def __post_init__(self) -> None:
        check_values(self, positive=("scale",))

    def protect_update(self, delta: State, setting: DefenseContext) -> tuple[State, Metrics]:
        entries = sum(value.numel() for value in delta.values())
        deviation = self.scale * float(norm(delta)) / entries**0.5
        generator = setting.generator(self.name)
        noised = {
            name: value + deviation * torch.randn(value.shape, generator=generator, dtype=value.dtype)
            for name, value in delta.items()
        }
        return noised, {"noise_std": deviation}

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return Encoding()

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"noise_scale": self.scale}
