"""How far a simulated update is from the observed one, and how rough images are."""

from collections.abc import Callable
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
    """(the simulated update, the nearest point of every entry's interval, held fixed), both 0 where nothing is known.

    Held fixed: of the squared distance the derivative by the nearest point is 0 anyway.
    """
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
