"""PowerSGD (Vogels et al. 2019): every matrix of the update is sent as two factors of low rank."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.interface.options import check_values
from clients.defenses.base import Defense, DefenseContext, Encoding, Metrics, register
from clients.defenses.compression.error_feedback import with_error_feedback
from clients.defenses.memory import as_text, from_text

FACTORS = "factors"  # of the last round, in the defense's memory


@register
@dataclass(frozen=True)
class PowerSGD(Defense):
    """M (rows, columns) becomes P Qᵀ by one step of subspace iteration: P = orthonormal(M Q), Q = Mᵀ P (algorithm 1).

    Q starts as it ended in the last round, at random in the first. Kernels of convolutions count as columns; tensors
    that would not become smaller, as biases, are sent whole. Where workers of one data centre average P before Q is
    made, which takes a second exchange, each client here compresses by itself. rank: of the factors. error_feedback:
    add what the factors lack to the next round's update, as published.
    """

    name: ClassVar[str] = "power_sgd"

    rank: int = 2
    error_feedback: bool = True

    def __post_init__(self) -> None:
        check_values(self, positive=("rank",))

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        def compress(whole: State) -> State:
            return self._compressed(whole, context)

        sent = with_error_feedback(delta, context.memory, compress) if self.error_feedback else compress(delta)
        return sent, {}

    def _compressed(self, delta: State, context: DefenseContext) -> State:
        generator, sent = context.generator(self.name), dict(delta)
        factors = from_text(context.memory[FACTORS]) if FACTORS in context.memory else {}
        for name, value in delta.items():
            if self._saves(value):
                matrix = value.flatten(1)
                start = torch.randn((matrix.shape[1], self.rank), generator=generator).to(matrix)
                left, right = power_step(matrix, factors.get(name, start))
                sent[name], factors[name] = (left @ right.T).view(value.shape), right
        if all(bool(right.isfinite().all() and right.any()) for right in factors.values()):
            context.memory[FACTORS] = as_text(factors)
        return sent

    def _saves(self, value: Tensor) -> bool:
        return value.dim() > 1 and self.rank * (len(value) + value[0].numel()) < value.numel()

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        values = [value for value in context.model.state_dict().values() if value.is_floating_point()]
        sent = [self.rank * (len(v) + v[0].numel()) if self._saves(v) else v.numel() for v in values]
        return Encoding(sum(sent) / sum(value.numel() for value in values))


def power_step(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """(P, Q) with P (rows, rank) orthonormal and P Qᵀ near the matrix (rows, columns), from Q (columns, rank)."""
    left = torch.linalg.qr(matrix @ right).Q
    return left, matrix.T @ left
