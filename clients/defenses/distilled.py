"""Training on a distilled set instead of the client's own images (Loo et al. 2024, section 7).

The set is made once, in the client's first round, and kept: a new one every round would give away more. RKIP is the
reconstruction loss read the other way, so a set nearly as large as the data can be the private images themselves; the
scorer gets both, and the table says how near they are.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attacks.interface.errors import InputError
from attacks.interface.options import check_values
from attacks.kernel.infinite import InfiniteNTK
from clients.data.partition import split_data
from clients.defenses.base import Defense, DefenseContext, Metrics, TrainingSet, register
from clients.distillation import DistillOptions, distill

RIGHT, WRONG = 0.9, -0.1  # coding of classes for kernel regression, where the loss itself takes class indices


@dataclass(frozen=True)
class DistilledTraining(Defense):
    """size: of the distilled set; default half of the client's images. iterations: of distillation."""

    mixes_images: ClassVar[bool] = True

    size: int | None = None
    iterations: int = 1000
    learning_rate: float = 0.01
    ridge: float = 1e-5

    def __post_init__(self) -> None:
        check_values(self, positive=("size", "iterations", "learning_rate", "ridge"))

    def check(self, context: DefenseContext) -> None:
        config = context.config
        sizes = split_data(config.data, config.partition, config.clients, config.seed).client_sizes
        if self.size is not None and self.size > min(sizes):
            smallest = f"client {sizes.index(min(sizes))} has {min(sizes)} images only"
            raise InputError(f"defense {self.name!r}: size is {self.size}, {smallest}")

    def prepare_data(self, data: TrainingSet, context: DefenseContext) -> tuple[TrainingSet, Metrics]:
        if "images" not in context.memory:
            size = min(self.size or max(1, len(data.inputs) // 2), len(data.inputs))
            classes = data.targets.dtype == torch.long
            options = DistillOptions(
                self.name, self.iterations, self.learning_rate, self.ridge, kernel=InfiniteNTK(), device="cpu"
            )
            with torch.enable_grad():
                found = distill(
                    data.inputs,
                    _coded(data, context) if classes else data.targets,
                    size,
                    context.generator("distillation"),
                    options,
                    context.model,
                )
            context.memory["images"] = found.images.tolist()
            context.memory["targets"] = (found.targets.argmax(1) if classes else found.targets).tolist()
        images = torch.tensor(context.memory["images"], dtype=data.inputs.dtype)
        targets = torch.tensor(context.memory["targets"], dtype=data.targets.dtype)
        return TrainingSet(images, targets, distilled=True), {"distilled": float(len(images))}


def _coded(data: TrainingSet, context: DefenseContext) -> Tensor:
    """Class indices as the values that kernel regression is to give, (N, K)."""
    with torch.no_grad():
        outputs = context.model(data.inputs[:1]).shape[1]
    return one_hot(data.targets, outputs) * (RIGHT - WRONG) + WRONG


@register
@dataclass(frozen=True)
class KIPTraining(DistilledTraining):
    """Kernel inducing points (Nguyen et al. 2021): the set from which kernel regression predicts the data."""

    name: ClassVar[str] = "kip"


@register
@dataclass(frozen=True)
class RKIPTraining(DistilledTraining):
    """KIP in the norm of the reconstruction loss, at infinite width."""

    name: ClassVar[str] = "rkip"


@register
@dataclass(frozen=True)
class RKIPFiniteTraining(DistilledTraining):
    """RKIP with the client's own network: few images reconstructed from its linearized training, and relabelled."""

    name: ClassVar[str] = "rkip_finite"
