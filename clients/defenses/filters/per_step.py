"""What the privacy filters of NVIDIA FLARE (nvflare.app_common.filters, version 2.9) have in common."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.interface.observation import State
from clients.defenses.base import Defense, DefenseContext
from clients.training import TrainingLoop, planned_steps

STEPS = "steps"  # that the client plans in this round, in the defense's memory


@dataclass(frozen=True)
class PerStepFilter(Defense):
    """A filter of the update divided by the number of local steps: its thresholds are those of a mean step."""

    def instrument(self, loop: TrainingLoop, count: int, context: DefenseContext) -> TrainingLoop:
        context.memory[STEPS] = planned_steps(context.config.training, count)
        return loop


def mean_step(delta: State, context: DefenseContext) -> tuple[Tensor, int]:
    """(all entries of the mean local step in one vector, how many steps it is the mean of)."""
    steps = int(context.memory.get(STEPS, 1))
    return torch.cat([value.flatten() for value in delta.values()]).double() / steps, steps


def like(entries: Tensor, delta: State) -> State:
    """The entries of one vector in the tensors of an update."""
    parts = entries.split([value.numel() for value in delta.values()])
    return {
        name: part.view(value.shape).to(value.dtype) for (name, value), part in zip(delta.items(), parts, strict=True)
    }
