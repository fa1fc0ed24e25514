"""How far a simulated update is from the observed one, how rough images are, and FedLeak's steps.

FedLeak (Fan, Wang, Chen and Zhou, *Boosting Gradient Leakage Attacks*, USENIX Security 2025, arXiv 2506.08435) matches
a part of the update's entries only, and penalizes the distance's own gradient in the images, so that the way leads into
flat minima:

    D(x) + λ ‖∇D(x)‖,  whose gradient is  ∇D + λ H ∇D/‖∇D‖  ≈  (1 − β) ∇D(x) + β ∇D(x + r ∇D/‖∇D‖),  β = λ/r,

which needs two gradients and no Hessian H. β is the blending factor.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.update.intervals import EntryIntervals


def update_distance(kind: Literal["cosine", "euclidean"], simulated: State, observed: State) -> Tensor:
    """cosine: 1 − ⟨Δ̂, Δ⟩ / (‖Δ̂‖ ‖Δ‖) over all parameters (Geiping et al. 2020). euclidean: ‖Δ̂ − Δ‖² / ‖Δ‖²,
    which in units of ‖Δ‖² is the distance of gradients of Zhu et al. (2019). A scalar."""
    squared = sum_over(observed, lambda name: observed[name] ** 2)
    if kind == "euclidean":
        return sum_over(observed, lambda name: (simulated[name] - observed[name]) ** 2) / squared
    lengths = sum_over(observed, lambda name: simulated[name] ** 2) * squared
    aligned = sum_over(observed, lambda name: simulated[name] * observed[name])
    return 1 - aligned / lengths.clamp_min(torch.finfo(lengths.dtype).tiny).sqrt()


def nearest_possible(simulated: State, possible: dict[str, EntryIntervals]) -> tuple[State, State]:
    """(the simulated update, the nearest point of every interval, held fixed), both 0 where nothing is known."""
    known = {name: own.lowest.isfinite() | own.highest.isfinite() for name, own in possible.items()}
    nearest = {name: possible[name].nearest(value.detach().double()).to(value) for name, value in simulated.items()}
    return masked(simulated, known), masked(nearest, known)


def masked(update: State, masks: State) -> State:
    """The update where the masks are 1 (or true), 0 elsewhere."""
    return {name: value * masks[name] for name, value in update.items()}


def sum_over(state: State, term: Callable[[str], Tensor]) -> Tensor:
    """Σ of the entries of `term(name)` over the names of `state`."""
    return torch.stack([term(name).sum() for name in state]).sum()


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of vertical and of horizontal neighbours, added; images (M, C, H, W)."""
    vertical = (images[:, :, 1:] - images[:, :, :-1]).abs()
    horizontal = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs()
    return sum((part.mean() for part in (vertical, horizontal) if part.numel()), images.new_zeros(()))


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
