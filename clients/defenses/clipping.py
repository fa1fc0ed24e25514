"""Clipping of the whole update to a norm: the building block of differential privacy, no defense by itself."""

from dataclasses import dataclass
from typing import ClassVar

from attacks.interface.observation import State
from attacks.interface.options import check_values
from clients.defenses.base import Defense, DefenseContext, Metrics, clipped, register


@register
@dataclass(frozen=True)
class Clipping(Defense):
    """Δθ · min(1, norm / ‖Δθ‖₂)."""

    name: ClassVar[str] = "clipping"

    norm: float = 1.0

    def __post_init__(self) -> None:
        check_values(self, positive=("norm",))

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        sent, factor = clipped(delta, self.norm)
        return sent, {"clipped_by": factor}
