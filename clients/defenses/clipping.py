"""Clipping of the whole update to a norm: the building block of differential privacy, no defense by itself."""

from dataclasses import dataclass
from typing import ClassVar

from attacks.interface.observation import State
from clients.defenses.base import Defense, DefenseContext, Metrics, check_positive, norm, register, scaled


@register
@dataclass(frozen=True)
class Clipping(Defense):
    """Δθ · min(1, norm / ‖Δθ‖₂)."""

    name: ClassVar[str] = "clipping"

    norm: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "norm")

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        size = float(norm(delta))
        factor = min(1.0, self.norm / size) if size else 1.0
        return scaled(delta, factor), {"clipped_by": factor}
