"""Half precision: the checkpoint travels in 16 bits, as a federation that trains in bfloat16 sends it."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from attacks.interface.observation import State
from attacks.interface.options import check_values
from clients.defenses.base import Defense, DefenseContext, Encoding, Metrics, register

SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11}  # the leading one, which is not stored, among them


@register
@dataclass(frozen=True)
class HalfPrecision(Defense):
    """dtype: in which the client sends its parameters (not their change), each rounded to the nearest such number.

    What rounding leaves of a change is relative to the parameter: bfloat16 takes away up to 0.4 % of the parameter.
    """

    name: ClassVar[str] = "half_precision"

    dtype: Literal["bfloat16", "float16"] = "bfloat16"

    def __post_init__(self) -> None:
        check_values(self)

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        sent = {}
        for name, value in delta.items():
            received = context.received.get(name, torch.zeros_like(value)).double()
            rounded = (received + value).to(getattr(torch, self.dtype)).double()
            sent[name] = (rounded - received).to(value.dtype)
        return sent, {}

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return replace(encoding, bits=min(encoding.bits, 16))

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"significant_bits": SIGNIFICANT_BITS[self.dtype]}
