"""NVIDIA FLARE's SVTPrivacy: entries chosen by the sparse vector technique, truncated and sent with Laplace noise.

FLARE's accountant adds ε + noise_var · (entries sent) for each round, as pure differential privacy of the whole update
(two updates differ by at most 2γ in an entry of a mean step). At its defaults that is a tenth of the entries times 0.1,
thousands for a small network. No ε is printed here: the sparse vector technique ends with the last answer that it
is paid for (Lyu et al. 2017), and the filter goes on to the end of the pass and draws from all that it accepted.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.interface.options import check_values
from clients.defenses.base import DefenseContext, Metrics, register
from clients.defenses.filters.per_step import PerStepFilter, like, mean_step


@register
@dataclass(frozen=True)
class SVT(PerStepFilter):
    """fraction: of all entries that are sent, c of them. epsilon: of choosing them, for threshold and queries together
    as 1 : (2c)^⅔. noise_var: ε of one entry's value, whose noise has the scale 2γ / noise_var (FLARE's name for it).
    gamma: entries of a mean local step count, and are sent, clipped to [−γ, γ]. tau: threshold on their magnitude.

    FLARE draws the c entries with replacement, so a few less are sent; it sends them in a whole update of zeros.
    """

    name: ClassVar[str] = "svt"

    fraction: float = 0.1
    epsilon: float = 0.1
    noise_var: float = 0.1
    gamma: float = 1e-5
    tau: float = 1e-6

    def __post_init__(self) -> None:
        check_values(self, ("epsilon", "noise_var", "gamma"), ("tau",), at_most={"fraction": 1})

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        entries, steps = mean_step(delta, context)
        if not entries.isfinite().all():  # no threshold tells anything of an update that diverged
            return delta, {}
        generator, count = context.generator(self.name), math.ceil(self.fraction * len(entries))
        clipped = entries.clamp(-self.gamma, self.gamma)
        accepted = self._accepted(clipped.abs(), count, generator).nonzero()[:, 0]
        chosen = accepted[torch.randint(len(accepted), (count,), generator=generator)].unique()
        sent = torch.zeros_like(entries)
        sent[chosen] = clipped[chosen] + laplace(len(chosen), 2 * self.gamma / self.noise_var, generator)
        return like(sent * steps, delta), {"sent": len(chosen) / len(entries)}

    def _accepted(self, magnitudes: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Bool (d,): entries whose noisy magnitude passed one noisy threshold, asked again until `count` have."""
        ratio = (2 * count) ** (2 / 3)
        for_threshold, for_queries = self.epsilon / (1 + ratio), self.epsilon * ratio / (1 + ratio)
        threshold = self.tau + laplace(1, self.gamma / for_threshold, generator)
        accepted = torch.zeros_like(magnitudes, dtype=torch.bool)
        while int(accepted.sum()) < count:
            noisy = magnitudes + laplace(len(magnitudes), 2 * count * self.gamma / for_queries, generator)
            accepted |= noisy >= threshold
        return accepted


def laplace(count: int, scale: float, generator: torch.Generator) -> Tensor:
    """Laplace noise (count,), float64: the difference of two exponential variates."""
    one, other = torch.empty((2, count), dtype=torch.float64).exponential_(generator=generator)
    return scale * (one - other)
