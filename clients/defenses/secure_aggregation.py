"""Secure aggregation: the server sees the mean of a round's updates and nothing of the parts.

What a protocol such as SecAgg+ would show it, without the masks, which cancel. The per-client view is then closed, the
aggregate is attacked instead.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.interface.options import check_values
from clients.data.partition import split_data
from clients.defenses.base import Defense, DefenseContext, Metrics, ServerHalf, register


@register
@dataclass(frozen=True)
class SecureAggregation(Defense):
    """Every client of a round is one party; the adversary is outside the sum.

    rounding: round as Flower's SecAgg+ has to, which adds integers; the defaults are Flower's. Each parameter (not its
    update) is multiplied by the client's number of images over max_weight, clipped to [−clipping_range, clipping_range]
    and rounded up or down at random to a multiple of 2 · clipping_range / quantization_range. In the mean this step
    grows by max_weight / Σ n: small clients are rounded most. Statistics of BatchNorm are left as they are.
    """

    name: ClassVar[str] = "secure_aggregation"

    rounding: bool = False
    clipping_range: float = 8.0
    quantization_range: int = 2**22
    max_weight: float = 1000.0

    def __post_init__(self) -> None:
        check_values(self, positive=("clipping_range", "quantization_range", "max_weight"))

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        if not self.rounding:
            return delta, {}
        config, generator = context.config, context.generator(self.name)
        images = split_data(config.data, config.partition, config.clients, config.seed).client_sizes[context.client]
        weight = round(images / self.max_weight * self.quantization_range) / self.quantization_range
        sent = {}
        for name, value in delta.items():
            received = context.received.get(name, torch.zeros_like(value)).double()
            rounded = self._rounded((received + value) * weight, generator) / weight
            sent[name] = (rounded - received).to(value.dtype)
        return sent, {}

    def _rounded(self, value: Tensor, generator: torch.Generator) -> Tensor:
        step = 2 * self.clipping_range / self.quantization_range
        levels = (value.clamp(-self.clipping_range, self.clipping_range) + self.clipping_range) / step
        drawn = torch.rand(value.shape, generator=generator, dtype=value.dtype)
        return (levels + drawn).floor() * step - self.clipping_range

    def server_half(self) -> ServerHalf:
        return ServerHalf(hides_clients=True)
