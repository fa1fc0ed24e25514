"""NVIDIA FLARE's PercentilePrivacy: share only the largest changes, and those truncated (Shokri and Shmatikov 2015)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attacks.interface.errors import InputError
from attacks.interface.observation import State
from attacks.interface.options import check_values
from clients.defenses.base import DefenseContext, Metrics, register
from clients.defenses.filters.per_step import PerStepFilter, like, mean_step


@register
@dataclass(frozen=True)
class Percentile(PerStepFilter):
    """percentile: of the magnitudes of all entries, 0 to 100; those below it become 0. gamma: what is left of a mean
    local step is clipped to [−γ, γ].

    It travels whole, zeros and all, as in FLARE. Where more than `percentile` % of the entries are 0 anyway, as behind
    dead ReLU units, nothing is left out. No guarantee is claimed.
    """

    name: ClassVar[str] = "percentile"

    percentile: float = 10.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        check_values(self, positive=("gamma",))
        if not 0 <= self.percentile <= 100:
            raise InputError(f"defense 'percentile': percentile is {self.percentile}, it has to be 0 to 100")

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        entries, steps = mean_step(delta, context)
        cutoff = float(np.percentile(entries.abs().numpy(), self.percentile))
        kept = entries.masked_fill(entries.abs() < cutoff, 0.0)
        clipped = kept.clamp(-self.gamma, self.gamma)
        return like(clipped * steps, delta), {
            "left_out": float((kept == 0).double().mean()),
            "truncated": float((clipped != kept).double().mean()),
        }

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"kept_fraction": 1 - self.percentile / 100} if self.percentile < 100 else {}
