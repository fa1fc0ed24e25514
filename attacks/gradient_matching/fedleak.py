"""FedLeak: a part of the update is matched, and descent looks ahead (Fan, Wang, Chen and Zhou, *Boosting Gradient
Leakage Attacks*, USENIX Security 2025, arXiv 2506.08435).

Their diagnosis is that gradient matching fails as an optimization, not for want of a unique solution. Two remedies:
only a part of the update's entries is matched, and the distance's own gradient in the images is penalized, so that the
way leads into flat minima:

    D(x) + λ ‖∇D(x)‖,  whose gradient is  ∇D + λ H ∇D/‖∇D‖  ≈  (1 − β) ∇D(x) + β ∇D(x + r ∇D/‖∇D‖),  β = λ/r,

which needs two gradients and no Hessian H. β is the blending factor.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attacks.interface.observation import State


def largest_entries(update: State, share: float) -> State:
    """1 at the `share` of each tensor's entries that are largest in absolute value, at least one, and 0 elsewhere."""
    masks = {}
    for name, value in update.items():
        flat = value.flatten().abs()
        kept = flat.topk(max(1, round(share * len(flat)))).indices
        masks[name] = torch.zeros_like(flat).index_fill_(0, kept, 1.0).view_as(value)
    return masks


def blended(
    gradients_at: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    variables: Sequence[Tensor],
    factor: float,
    radius: float,
) -> list[Tensor]:
    """The gradients in `variables` at these, blended with those a step of length `radius` up the slope.

    gradients_at: of the distance, at other values of the variables. The first, the images, takes the step.
    """
    images, *others = variables
    here = gradients_at(variables)
    step = radius * here[0] / here[0].norm().clamp_min(torch.finfo(images.dtype).tiny)
    there = gradients_at([images + step, *others])
    return [(1 - factor) * a + factor * b for a, b in zip(here, there, strict=True)]
