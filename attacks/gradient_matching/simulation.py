"""What is simulated in place of a client's steps, how far its update is from the observed one, and FedLeak's steps.

FedLeak (Fan, Wang, Chen and Zhou, *Boosting Gradient Leakage Attacks*, USENIX Security 2025, arXiv 2506.08435) matches
a part of the update's entries only, and penalizes the distance's own gradient in the images, so that the way leads into
flat minima:

    D(x) + λ ‖∇D(x)‖,  whose gradient is  ∇D + λ H ∇D/‖∇D‖  ≈  (1 − β) ∇D(x) + β ∇D(x + r ∇D/‖∇D‖),  β = λ/r,

which needs two gradients and no Hessian H. β is the blending factor.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Literal

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.update.intervals import EntryIntervals
from attacks.update.labels import estimate_label_counts
from attacks.update.local_training import LocalTraining, one_hot, step_weights

Batches = list[Tensor]
Order = Literal["fixed", "drawn"]


@dataclass(frozen=True)
class SimulatedSteps:
    """The steps that are simulated in place of a client's.

    num_images: of the client.
    client_steps: that it took.
    steps: that are simulated.
    batch_size: images per step.
    told: the indices of each step where they are known or all images are used at once.
    learning_rate_factor: lets fewer steps move the parameters as far.
    """

    num_images: int
    client_steps: int
    steps: int
    batch_size: int
    order: Order
    told: tuple[Tensor, ...] | None
    learning_rate_factor: float
    device: torch.device
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls, knowledge: Knowledge, order: Order, momentum: float, max_unrolled: int, device: torch.device
    ) -> "SimulatedSteps":
        """Plan the client's steps. knowledge: with num_private and steps or batches; batch_size is used where known."""
        count = knowledge.num_private or 1
        steps = len(knowledge.batches) if knowledge.batches is not None else knowledge.steps or 1
        warnings = []
        simulated = min(steps, max_unrolled)
        factor = float(step_weights(steps, momentum).sum() / step_weights(simulated, momentum).sum())
        if simulated < steps:
            rate = f"{factor:.3g} times the learning rate"
            warnings.append(f"{simulated} steps of {rate} stand for {steps} (max_unrolled)")
        size, told = min(knowledge.batch_size or count, count), None
        if knowledge.batches is not None:
            wrong = [i for batch in knowledge.batches for i in batch if not 0 <= i < count]
            if wrong:
                raise InputError(f"knowledge batches name image {wrong[0]}: indices go from 0 to {count - 1}")
            told = tuple(torch.tensor(batch, device=device) for batch in knowledge.batches[:simulated])
        elif size == count:
            told = (torch.arange(count, device=device),) * simulated
            if knowledge.batch_size is None and steps > 1:
                warnings.append("batch_size is unknown: steps on all images were assumed")
        else:
            warnings.append(f"the order of the images is unknown: {order} at random")
        return cls(count, steps, simulated, size, order, told, factor, device, tuple(warnings))

    def batches(self, generator: torch.Generator) -> Callable[[], Batches]:
        """Return a function that gives the batches of an iteration: the same ones unless the order is `drawn`."""
        if self.told is not None:
            told = list(self.told)
            return lambda: told
        fixed = self._draw(generator, 1)
        epochs = math.ceil(self.steps / math.ceil(self.num_images / self.batch_size))
        return (lambda: self._draw(generator, epochs)) if self.order == "drawn" else (lambda: fixed)

    def _draw(self, generator: torch.Generator, epochs: int) -> Batches:
        order = torch.stack([torch.randperm(self.num_images, generator=generator) for _ in range(epochs)])
        return shuffled_batches(order.to(self.device), self.batch_size, self.steps)


def shuffled_batches(order: Tensor, batch_size: int, steps: int) -> Batches:
    """Return the images of every step as a loader cuts them from rows of `order` (epochs, N), the last one repeated."""
    epochs = chain(order, repeat(order[-1]))
    return list(islice(chain.from_iterable(epoch.split(batch_size) for epoch in epochs), steps))


def told_or_inferred_classes(
    observation: Observation, knowledge: Knowledge, training: LocalTraining, outputs: int
) -> tuple[Tensor, tuple[str, ...]]:
    """Return ((N, K) class probabilities as told or inferred from the last layer, warnings). knowledge: with
    num_private. training: as it is believed to be, by SGD, with its loss, coding and momentum. outputs: K."""
    if knowledge.labels is None:
        momentum = training.optimizer.momentum
        found = estimate_label_counts(observation, knowledge, training.loss, momentum, training.coding)
        labels = torch.repeat_interleave(torch.arange(len(found.counts)), found.counts)
        text = f"labels were inferred: {found.counts.tolist()} of each class, confidence {found.confidence:.2f}"
        return one_hot(labels, outputs), (text,)
    check_labels(knowledge)
    return one_hot(torch.tensor(knowledge.labels), outputs), ()


def check_labels(knowledge: Knowledge) -> None:
    """Raise InputError where another number of labels is told than there are images."""
    if knowledge.labels is not None and len(knowledge.labels) != knowledge.num_private:
        raise InputError(f"knowledge labels has {len(knowledge.labels)} entries for {knowledge.num_private} images")


def update_distance(kind: Literal["cosine", "euclidean"], simulated: State, observed: State) -> Tensor:
    """Return the distance of two updates, a scalar. cosine: 1 − ⟨Δ̂, Δ⟩ / (‖Δ̂‖ ‖Δ‖) over all parameters (Geiping et
    al. 2020). euclidean: ‖Δ̂ − Δ‖² / ‖Δ‖², which in units of ‖Δ‖² is the distance of gradients of Zhu et al. (2019)."""
    squared = sum_over(observed, lambda name: observed[name] ** 2)
    if kind == "euclidean":
        return sum_over(observed, lambda name: (simulated[name] - observed[name]) ** 2) / squared
    lengths = sum_over(observed, lambda name: simulated[name] ** 2) * squared
    aligned = sum_over(observed, lambda name: simulated[name] * observed[name])
    return 1 - aligned / lengths.clamp_min(torch.finfo(lengths.dtype).tiny).sqrt()


def nearest_possible(simulated: State, possible: dict[str, EntryIntervals]) -> tuple[State, State]:
    """Return (the simulated update, the nearest point of every interval, held fixed), both 0 where nothing is known."""
    known = {name: own.lowest.isfinite() | own.highest.isfinite() for name, own in possible.items()}
    nearest = {name: possible[name].nearest(value.detach().double()).to(value) for name, value in simulated.items()}
    return masked(simulated, known), masked(nearest, known)


def masked(update: State, masks: State) -> State:
    """Return the update where the masks are 1 (or true), 0 elsewhere."""
    return {name: value * masks[name] for name, value in update.items()}


def sum_over(state: State, term: Callable[[str], Tensor]) -> Tensor:
    """Return Σ of the entries of `term(name)` over the names of `state`."""
    return torch.stack([term(name).sum() for name in state]).sum()


def total_variation(images: Tensor) -> Tensor:
    """Return the mean absolute difference of vertical and of horizontal neighbours, added; images (M, C, H, W)."""
    vertical = (images[:, :, 1:] - images[:, :, :-1]).abs()
    horizontal = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs()
    return sum((part.mean() for part in (vertical, horizontal) if part.numel()), images.new_zeros(()))


def largest_entries(update: State, share: float) -> State:
    """Return 1 at the `share` of each tensor's entries of largest absolute value, at least one, and 0 elsewhere."""
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
    """Return the distance's gradients at `variables`, blended with those after a step of length `radius` uphill.

    gradients_at: the gradients at given variables. The first one, the images, takes the step.
    """
    images, *others = variables
    here = gradients_at(variables)
    step = radius * here[0] / here[0].norm().clamp_min(torch.finfo(images.dtype).tiny)
    there = gradients_at([images + step, *others])
    return [(1 - factor) * a + factor * b for a, b in zip(here, there, strict=True)]
