"""signSGD (Bernstein et al. 2018) on a client's update, in the scaled form of Karimireddy et al. (2019)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.interface.observation import State
from clients.defenses.base import Defense, DefenseContext, Encoding, Metrics, register
from clients.defenses.compression.error_feedback import with_error_feedback


@register
@dataclass(frozen=True)
class SignSGD(Defense):
    """Send the sign of every entry and, for each tensor, the mean magnitude of its entries, by which it is multiplied.

    One bit has no zero: an entry of 0 is sent as positive. The server averages what it gets, there is no majority vote.
    error_feedback: add what the signs lack to the next round's update, as the scaled form needs in order to converge.
    """

    name: ClassVar[str] = "sign_sgd"

    error_feedback: bool = False

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        return with_error_feedback(delta, context.memory, signs) if self.error_feedback else signs(delta), {}

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {} if self.error_feedback else {"quantization_bits": 1}

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return Encoding(bits=1)


def signs(delta: State) -> State:
    """(‖v‖₁ / d) · sign(v) of every tensor v of d entries (Karimireddy et al. 2019, equation for scaled signs)."""
    sent = {}
    for name, value in delta.items():
        scale = value.abs().mean()
        sent[name] = torch.where(value < 0, -scale, scale)
    return sent
