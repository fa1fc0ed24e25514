"""Uniform quantization of every tensor of the update between its extremes, to the nearest level or at random (QSGD)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.observation import State
from clients.defenses.base import Defense, DefenseContext, Encoding, Metrics, register


@register
@dataclass(frozen=True)
class Quantization(Defense):
    """bits: of each entry, 2^bits levels. stochastic: round up or down at random, right in expectation."""

    name: ClassVar[str] = "quantization"

    bits: int = 8
    stochastic: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 16:
            raise InputError(f"defense 'quantization': bits is {self.bits}, it has to be 1 to 16")

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        generator = context.generator(self.name)
        return {name: self._quantized(value, generator) for name, value in delta.items()}, {}

    def _quantized(self, value: Tensor, generator: torch.Generator) -> Tensor:
        low, high = value.min(), value.max()
        step = (high - low) / (2**self.bits - 1)
        if not step > 0:
            return value
        levels = (value - low) / step
        shift = torch.rand(value.shape, generator=generator) if self.stochastic else 0.5
        return low + step * (levels + shift).floor().clamp(0, 2**self.bits - 1)

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return replace(encoding, bits=self.bits)

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"quantization_bits": self.bits}
