"""Which images a client used in which step, and their labels: as told, else inferred or drawn at random."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Literal

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.update.labels import estimate_label_counts
from attacks.update.local_training import LocalTraining, one_hot, step_weights

Batches = list[Tensor]
Order = Literal["fixed", "drawn"]


@dataclass(frozen=True)
class SimulatedSteps:
    """The steps that are simulated in place of a client's.

    num_images: of the client. client_steps: that it took. steps: that are simulated. batch_size: images per step.
    told: the indices of each step where they are known or all images are used at once. learning_rate_factor: lets
    fewer steps move the parameters as far.
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
        """knowledge: with num_private, and with steps or batches; batch_size is used where known."""
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
        """A function that gives the batches of an iteration: the same ones unless the order is `drawn`."""
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
    """The images of every step as a loader cuts them from rows of `order` (epochs, N); the last row serves on."""
    epochs = chain(order, repeat(order[-1]))
    return list(islice(chain.from_iterable(epoch.split(batch_size) for epoch in epochs), steps))


def told_or_inferred_classes(
    observation: Observation, knowledge: Knowledge, training: LocalTraining, outputs: int
) -> tuple[Tensor, tuple[str, ...]]:
    """((N, K) class probabilities as told or inferred from the last layer, warnings). knowledge: with num_private.
    training: as it is believed to be, by SGD, with its loss, coding and momentum. outputs: K."""
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
