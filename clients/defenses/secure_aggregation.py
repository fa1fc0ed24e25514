"""Secure aggregation: the server sees the mean of a round's updates and nothing of the parts.

This is what a protocol such as SecAgg+ shows it, without the masks, which cancel. Attacks see the aggregate alone.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.interface.options import POSITIVE
from clients.data.partition import split_data
from clients.defenses.base import Defense, DefenseContext, Metrics, ObservedUpdate, ServerHalf, register, rounded
from clients.defenses.guarantee import Adversary


@register
@dataclass(frozen=True)
class SecureAggregation(Defense):
    """Show the server the sum of the updates only, and no single client's; nothing is encrypted in this simulation.

    Flower's SecAgg+ adds integers. Each parameter (not its update) is multiplied by the client's number of images over
    max_weight, clipped to [−clipping_range, clipping_range] and rounded up or down at random to a multiple of
    2 · clipping_range / quantization_range. In the mean this step grows by max_weight / Σ n: small clients are rounded
    most. Statistics of BatchNorm are left as they are. The defaults are Flower's.

    rounding: round as SecAgg+ has to.
    clipping_range: largest size of a parameter that is sent.
    quantization_range: number of steps in the range.
    max_weight: largest number of images of a client.
    """

    name: ClassVar[str] = "secure_aggregation"

    rounding: bool = False
    clipping_range: Annotated[float, POSITIVE] = 8.0
    quantization_range: Annotated[int, POSITIVE] = 2**22
    max_weight: Annotated[float, POSITIVE] = 1000.0

    def tells_noise_to(self, adversary: Adversary) -> bool:
        return self.rounding

    def noise_told(self, observed: ObservedUpdate) -> float | None:
        """Return the deviation of rounding at random to a multiple of s: s / √6 if the place between two is uniform."""
        if not self.rounding:
            return None
        return observed.averaged(*(self._step / self._weight(images) / math.sqrt(6) for images in observed.sizes))

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        if not self.rounding:
            return delta, {}
        config, generator = context.config, context.generator(self.name)
        images = split_data(config.data, config.partition, config.clients, config.seed).client_sizes[context.client]
        weight = self._weight(images)
        return rounded(delta, context, lambda parameter: self._rounded(parameter * weight, generator) / weight), {}

    @property
    def _step(self) -> float:
        """The distance of two levels of a parameter that is multiplied by its client's weight."""
        return 2 * self.clipping_range / self.quantization_range

    def _weight(self, images: int) -> float:
        return round(images / self.max_weight * self.quantization_range) / self.quantization_range

    def _rounded(self, value: Tensor, generator: torch.Generator) -> Tensor:
        levels = (value.clamp(-self.clipping_range, self.clipping_range) + self.clipping_range) / self._step
        drawn = torch.rand(value.shape, generator=generator, dtype=value.dtype)
        return (levels + drawn).floor() * self._step - self.clipping_range

    def server_half(self) -> ServerHalf:
        return ServerHalf(hides_clients=True)
