"""Filter the update: clipping, noise, and the privacy filters of NVIDIA FLARE (nvflare.app_common.filters, version
2.9).

No ε of SVT is printed here, though FLARE's accountant adds up thousands: the sparse vector technique ends with the last
answer that it is paid for (Lyu et al. 2017), and the filter goes on to the end of the pass.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.interface.options import NOT_NEGATIVE, POSITIVE, Range, above_zero_to
from clients.defenses.base import Defense, DefenseContext, Encoding, Metrics, clipped, flat, like, norm, register
from clients.training import TrainingLoop, planned_steps


@register
@dataclass(frozen=True)
class Clipping(Defense):
    """Shrink an update that is larger than a limit to that limit, and change no other.

    It becomes Δθ · min(1, norm / ‖Δθ‖₂).

    norm: the largest L2 norm of an update.
    """

    name: ClassVar[str] = "clipping"

    norm: Annotated[float, POSITIVE] = 1.0

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, Metrics]:
        sent, factor = clipped(delta, self.norm)
        return sent, {"clipped_by": factor}


@register
@dataclass(frozen=True)
class Noise(Defense):
    """Add random noise to the update before it is sent, relative to its size, without any guarantee.

    The baseline of defenses that have one; the noise is Gaussian.

    scale: expected norm of the noise, relative to ‖Δθ‖₂.
    """

    name: ClassVar[str] = "noise"

    scale: Annotated[float, POSITIVE] = 0.1

    def protect_update(self, delta: State, setting: DefenseContext) -> tuple[State, Metrics]:
        entries = sum(value.numel() for value in delta.values())
        deviation = self.scale * float(norm(delta)) / entries**0.5
        generator = setting.generator(self.name)
        noised = {
            name: value + deviation * torch.randn(value.shape, generator=generator, dtype=value.dtype)
            for name, value in delta.items()
        }
        return noised, {"noise_std": deviation}

    def encode(self, encoding: Encoding, context: DefenseContext) -> Encoding:
        return Encoding()

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"noise_scale": self.scale}


STEPS = "steps"  # that the client plans in this round, in the defense's memory


@dataclass(frozen=True)
class PerStepFilter(Defense):
    """A filter of the update divided by the number of local steps: its thresholds are those of a mean step."""

    def instrument(self, loop: TrainingLoop, count: int, context: DefenseContext) -> TrainingLoop:
        context.memory[STEPS] = planned_steps(context.config.training, count)
        return loop


def mean_step(delta: State, context: DefenseContext) -> tuple[Tensor, int]:
    """Return (all entries of the mean local step in one vector, the number of steps)."""
    steps = int(context.memory.get(STEPS, 1))
    return flat(delta).double() / steps, steps


@register
@dataclass(frozen=True)
class Percentile(PerStepFilter):
    """Leave out the smallest changes, a tenth of them by default, and cut off the rest at a limit (PercentilePrivacy).

    Shokri and Shmatikov 2015.

    percentile: of the magnitudes of all entries, 0 to 100; those below it become 0.
    gamma: what is left of a mean local step is clipped to [−γ, γ].

    It travels whole, zeros and all, as in FLARE. Where more than `percentile` % of the entries are 0 anyway, as behind
    dead ReLU units, nothing is left out. No guarantee is claimed.
    """

    name: ClassVar[str] = "percentile"

    percentile: Annotated[float, Range("has to be 0 to 100", 0, 100, with_low=True, with_high=True)] = 10.0
    gamma: Annotated[float, POSITIVE] = 0.01

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


@register
@dataclass(frozen=True)
class SVT(PerStepFilter):
    """Send a part of the larger changes only, chosen and sent with noise (NVIDIA FLARE's SVTPrivacy).

    Chosen by the sparse vector technique, truncated, and with Laplace noise.

    fraction: of all entries that are sent, c of them.
    epsilon: of choosing them, for threshold and queries together as 1 : (2c)^⅔.
    noise_var: ε of one entry's value, whose noise has the scale 2γ / noise_var (FLARE's name for it).
    gamma: entries of a mean local step count, and are sent, clipped to [−γ, γ].
    tau: threshold on their magnitude.

    FLARE draws the c entries with replacement, so a few less are sent; it sends them in a whole update of zeros.
    """

    name: ClassVar[str] = "svt"

    fraction: Annotated[float, above_zero_to(1)] = 0.1
    epsilon: Annotated[float, POSITIVE] = 0.1
    noise_var: Annotated[float, POSITIVE] = 0.1
    gamma: Annotated[float, POSITIVE] = 1e-5
    tau: Annotated[float, NOT_NEGATIVE] = 1e-6

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
        """Return (d,) bool: which entries' noisy magnitude passed a noisy threshold; ask again until `count` have."""
        ratio = (2 * count) ** (2 / 3)
        for_threshold, for_queries = self.epsilon / (1 + ratio), self.epsilon * ratio / (1 + ratio)
        threshold = self.tau + laplace(1, self.gamma / for_threshold, generator)
        accepted = torch.zeros_like(magnitudes, dtype=torch.bool)
        while int(accepted.sum()) < count:
            noisy = magnitudes + laplace(len(magnitudes), 2 * count * self.gamma / for_queries, generator)
            accepted |= noisy >= threshold
        return accepted


def laplace(count: int, scale: float, generator: torch.Generator) -> Tensor:
    """Draw Laplace noise (count,), float64: the difference of two exponential variates."""
    one, other = torch.empty((2, count), dtype=torch.float64).exponential_(generator=generator)
    return scale * (one - other)
