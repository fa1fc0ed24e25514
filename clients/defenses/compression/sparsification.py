"""Sparsification: only some entries of the update are sent, the others are zero (Aji and Heafield 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.interface.options import check_values
from clients.defenses.base import Defense, DefenseContext, Encoding, Metrics, register
from clients.defenses.compression.error_feedback import with_error_feedback


@register
@dataclass(frozen=True)
class TopK(Defense):
    """fraction: of all entries of the update, the largest ones, that are sent with their positions. error_feedback: add
    what was not sent to the next round's update (Stich et al. 2018)."""

    name: ClassVar[str] = "top_k"

    fraction: float = 0.1
    error_feedback: bool = False

    def __post_init__(self) -> None:
        check_values(self, at_most={"fraction": 1})

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        if self.error_feedback:
            return with_error_feedback(delta, context.memory, self._largest), {}
        return self._largest(delta), {}

    def _largest(self, delta: State) -> State:
        flat = torch.cat([value.flatten() for value in delta.values()])
        kept = torch.zeros_like(flat, dtype=torch.bool)
        kept[flat.abs().topk(max(1, round(self.fraction * len(flat)))).indices] = True
        return _masked(delta, kept)

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return Encoding(self.fraction * encoding.fraction, encoding.bits, indexed=True)

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"kept_fraction": self.fraction}


@register
@dataclass(frozen=True)
class RandomK(Defense):
    """fraction: of all entries, drawn anew in every round; the seed that both sides know stands for their positions.

    rescale: divide what is sent by the fraction, so that the update is right in expectation.
    """

    name: ClassVar[str] = "random_k"

    fraction: float = 0.1
    rescale: bool = True

    def __post_init__(self) -> None:
        check_values(self, at_most={"fraction": 1})

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        entries = sum(value.numel() for value in delta.values())
        kept = torch.zeros(entries, dtype=torch.bool)
        order = torch.randperm(entries, generator=context.generator(self.name))
        kept[order[: max(1, round(self.fraction * entries))]] = True
        return _masked(delta, kept, 1 / self.fraction if self.rescale else 1.0), {}

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return Encoding(self.fraction * encoding.fraction, encoding.bits, encoding.indexed)

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"kept_fraction": self.fraction}


def _masked(delta: State, kept: Tensor, factor: float = 1.0) -> State:
    parts = kept.split([value.numel() for value in delta.values()])
    return {
        name: value * part.view(value.shape) * factor for (name, value), part in zip(delta.items(), parts, strict=True)
    }
