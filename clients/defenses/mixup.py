"""Mixup (Zhang et al. 2018): every step sees convex combinations of two images and of their losses."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from attacks.interface.options import check_values
from clients.defenses.base import Defense, register
from clients.training import Batch


@register
@dataclass(frozen=True)
class Mixup(Defense):
    """alpha: of the Beta(α, α) distribution of the weight, drawn for each batch."""

    name: ClassVar[str] = "mixup"
    mixes_images: ClassVar[bool] = True

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_values(self, positive=("alpha",))

    def local_step(self, batch: Batch, generator: torch.Generator) -> Batch:
        # two Gamma variates make a Beta variate; the Gamma sampler takes a generator
        parts = torch._standard_gamma(torch.full((2,), self.alpha), generator=generator)
        weight = float(parts[0] / parts.sum())
        order = torch.randperm(len(batch.inputs), generator=generator).to(batch.inputs.device)
        inputs = weight * batch.inputs + (1 - weight) * batch.inputs[order]
        own = tuple((weight * share, target) for share, target in batch.targets)
        other = tuple(((1 - weight) * share, target[order]) for share, target in batch.targets)
        return Batch(inputs, own + other)
