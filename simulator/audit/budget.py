"""Which attacks an audit tries where none is named, and how long the slow one may take."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from simulator.audit.images import Shape
from simulator.scenario.sections import AttackConfig

OPERATIONS = 1e11  # that a short `ntk` may take: five to ten seconds of one core
PASSES = 48  # forward passes that an iteration on one candidate costs: two tangent kernels, and their gradients
CANDIDATES = 2  # for each private image
FEWEST, MOST = 50, 2_000  # iterations
ASSUMED_IMAGES = 16  # where nobody tells how many there are


def default_attacks(model: nn.Module, shape: Shape, most_images: int) -> tuple[AttackConfig, ...]:
    """`span`, and `ntk` for about ten seconds, whatever the machine: by counting operations, so that the same audit
    gives the same tables. most_images: of a client, 0 where nobody tells."""
    candidates = CANDIDATES * (most_images or ASSUMED_IMAGES)
    iterations = int(OPERATIONS / (forward_operations(model, shape) * PASSES * candidates))
    short = {"name": "ntk", "iterations": min(MOST, max(FEWEST, iterations))}
    return AttackConfig.model_validate({"name": "span"}), AttackConfig.model_validate(short)


def forward_operations(model: nn.Module, shape: Shape) -> int:
    """Of one image (C, H, W)."""
    first = next(model.parameters())
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.zeros(1, *shape, dtype=first.dtype))
    return max(1, counter.get_total_flops())
