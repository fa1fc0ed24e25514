"""Which images a client used in which step, and their labels: as told, else inferred or drawn at random."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attacks.gradient_matching.local_training import Loss, one_hot, step_weights
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.update.labels import estimate_label_counts

Batches = list[Tensor]
Order = Literal["fixed", "drawn"]


@dataclass(frozen=True)
class Schedule:
    """The steps that are simulated for a client's.

    told: the indices of each step where they are known or all images are used at once. size: images per step.
    stretch: factor on the learning rate that lets fewer steps move as far.
    """

    count: int
    steps: int
    size: int
    order: Order
    told: tuple[Tensor, ...] | None
    stretch: float
    device: torch.device
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls, knowledge: Knowledge, order: Order, momentum: float, max_unrolled: int, device: torch.device
    ) -> "Schedule":
        """knowledge: with num_private and steps; batches and batch_size are used where known."""
        count, steps = knowledge.num_private or 1, knowledge.steps or 1
        warnings = []
        simulated = min(steps, max_unrolled)
        stretch = float(step_weights(steps, momentum).sum() / step_weights(simulated, momentum).sum())
        if simulated < steps:
            warnings.append(
                f"{simulated} steps of {stretch:.3g} times the learning rate stand for {steps} (max_unrolled)"
            )
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
        return cls(count, simulated, size, order, told, stretch, device, tuple(warnings))

    def batches(self, generator: torch.Generator) -> Callable[[], Batches]:
        """A function that gives the batches of an iteration: the same ones unless the order is `drawn`."""
        if self.told is not None:
            told = list(self.told)
            return lambda: told
        fixed = self._draw(generator, 1)
        epochs = math.ceil(self.steps / math.ceil(self.count / self.size))
        return (lambda: self._draw(generator, epochs)) if self.order == "drawn" else (lambda: fixed)

    def _draw(self, generator: torch.Generator, epochs: int) -> Batches:
        order = torch.stack([torch.randperm(self.count, generator=generator) for _ in range(epochs)])
        return shuffled_batches(order.to(self.device), self.size, self.steps)


def shuffled_batches(order: Tensor, batch_size: int, steps: int) -> Batches:
    """The images of every step as a loader cuts them: each row of `order` (epochs, N) into batches, the last one
    smaller; the last row serves all further epochs."""
    batches: Batches = []
    epoch = 0
    while len(batches) < steps:
        batches += order[min(epoch, len(order) - 1)].split(batch_size)
        epoch += 1
    return batches[:steps]


def believed_classes(
    observation: Observation, knowledge: Knowledge, outputs: int, loss: Loss, momentum: float
) -> tuple[Tensor, list[str]]:
    """((N, K) class probabilities as told or inferred from the last layer, warnings). knowledge: with num_private."""
    if knowledge.labels is None:
        found = estimate_label_counts(observation, knowledge, loss, momentum)
        labels = torch.repeat_interleave(torch.arange(len(found.counts)), found.counts)
        text = f"labels were inferred: {found.counts.tolist()} of each class, confidence {found.confidence:.2f}"
        return one_hot(labels, outputs), [text]
    labels = torch.tensor(knowledge.labels)
    if len(labels) != knowledge.num_private:
        raise InputError(f"knowledge labels has {len(labels)} entries for {knowledge.num_private} images")
    return one_hot(labels, outputs), []
