"""Change the training data: augmentation, mixup, leaving out the easiest images, and training on a distilled set.

A distilled set is made once, in the client's first round, and kept. RKIP is the reconstruction loss read the other way:
a set nearly as large as the data can be the private images themselves; the table says how near they are.
"""

import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.options import BELOW_ONE, NOT_NEGATIVE, POSITIVE
from attacks.kernel.empirical import empirical_ntk
from attacks.kernel.infinite import InfiniteNTK
from attacks.networks.probing import count_outputs
from clients.data.partition import split_data
from clients.defenses.base import Defense, DefenseContext, Metrics, TrainingSet, Transformation, register
from clients.distillation import DistillOptions, distill
from clients.training import Batch, encode_targets


@register
@dataclass(frozen=True)
class Augmentation(Defense):
    """Train on images that are shifted, flipped and noised anew in every step, so that none is seen as it is.

    shift: pixels, at most, in each direction, wrapped around.
    flip: mirror half of the images.
    noise: standard deviation of Gaussian noise on pixels in [0, 1].
    """

    name: ClassVar[str] = "augmentation"

    shift: Annotated[int, NOT_NEGATIVE] = 1
    flip: bool = False
    noise: Annotated[float, NOT_NEGATIVE] = 0.0

    def local_step(self, batch: Batch, generator: torch.Generator) -> Batch:
        count = len(batch.inputs)
        shifts = torch.randint(-self.shift, self.shift + 1, (count, 2), generator=generator).tolist()
        flips = (torch.rand(count, generator=generator) < 0.5 * self.flip).tolist()
        images = [
            image.roll(shift, (1, 2)).flip(2) if flip else image.roll(shift, (1, 2))
            for image, shift, flip in zip(batch.inputs, shifts, flips, strict=True)
        ]
        inputs = torch.stack(images) if images else batch.inputs
        if self.noise:
            inputs = inputs + self.noise * torch.randn(inputs.shape, generator=generator).to(inputs.device)
        return replace(batch, inputs=inputs)

    def invariances(self) -> tuple[Transformation, ...]:
        """Return every shift, and every shift mirrored."""
        steps = range(-self.shift, self.shift + 1)
        views = product([False, True][: 1 + self.flip], steps, steps)
        return tuple(partial(_view, shift=(down, right), flip=flip) for flip, down, right in views)


def _view(images: Tensor, shift: tuple[int, int], flip: bool) -> Tensor:
    """Shift images (N, C, H, W) by so many pixels, wrapped around, then mirror them or not."""
    shifted = images.roll(shift, (2, 3))
    return shifted.flip(3) if flip else shifted


@register
@dataclass(frozen=True)
class Mixup(Defense):
    """Train on blends of two images each, drawn anew in every step (Mixup).

    Zhang et al. 2018: convex combinations of images and of their losses.

    alpha: of the Beta(α, α) distribution of the weight, drawn for each batch.
    """

    name: ClassVar[str] = "mixup"
    mixes_images: ClassVar[bool] = True

    alpha: Annotated[float, POSITIVE] = 1.0

    def local_step(self, batch: Batch, generator: torch.Generator) -> Batch:
        # two Gamma variates make a Beta variate; the Gamma sampler takes a generator
        parts = torch._standard_gamma(torch.full((2,), self.alpha), generator=generator)
        weight = float(parts[0] / parts.sum())
        order = torch.randperm(len(batch.inputs), generator=generator).to(batch.inputs.device)
        inputs = weight * batch.inputs + (1 - weight) * batch.inputs[order]
        own = tuple((weight * share, target) for share, target in batch.targets)
        other = tuple(((1 - weight) * share, target[order]) for share, target in batch.targets)
        return Batch(inputs, own + other)


RIDGE = 1e-6  # of the kernel's mean diagonal


@register
@dataclass(frozen=True)
class PruneEasiest(Defense):
    """Train without the images that an attack would find most easily.

    Those with the largest duals (Loo et al. 2024, sec. 6, C.1).

    fraction: of the client's images that are left out, as they are at the parameters received in its first round.

    The dual of an image is α = K₀⁻¹(y − f₀(x)) with the tangent kernel at those parameters: what slow fitting costs. A
    client decides once: the easiest of every new round are others, so in the end all would have been trained on.
    """

    name: ClassVar[str] = "prune_easiest"
    mixes_images: ClassVar[bool] = True  # which images are left depends on all

    fraction: Annotated[float, BELOW_ONE] = 0.25

    def prepare_data(self, data: TrainingSet, context: DefenseContext) -> tuple[TrainingSet, Metrics]:
        if "kept" not in context.memory:
            size = duals(context.model, data).norm(dim=1)
            keep = max(1, len(size) - round(self.fraction * len(size)))
            context.memory["kept"] = without_easiest(size, len(size) - keep).tolist()
        kept = torch.tensor(context.memory["kept"])
        pruned = float(len(data.inputs) - len(kept))
        return TrainingSet(data.inputs[kept], data.targets[kept], data.distilled), {"pruned": pruned}


def without_easiest(ease: Tensor, count: int, groups: Tensor | None = None) -> Tensor:
    """Return ascending indices of the images without the `count` easiest, those with the largest `ease` (N,). groups:
    (N,) classes, to leave out as many of each if possible; default: whichever are easiest."""
    if groups is None:
        return ease.argsort(stable=True)[: len(ease) - count].sort().values
    present = groups.unique()
    shares = [count // len(present) + (i < count % len(present)) for i in range(len(present))]
    kept = []
    for group, share in zip(present, shares, strict=True):
        own = (groups == group).nonzero()[:, 0]
        kept.append(own[without_easiest(ease[own], min(share, len(own)))])
    return torch.cat(kept).sort().values


def duals(model: nn.Module, data: TrainingSet) -> Tensor:
    """Return α (N, K) of kernel regression onto the residuals, with the trace form of the kernel."""
    model = copy.deepcopy(model).eval()
    state = {name: value.detach() for name, value in model.state_dict().items()}
    kernel = empirical_ntk(model, state, data.inputs).double()
    with torch.no_grad():
        outputs = model(data.inputs).double()
    if data.targets.dtype == torch.long:
        residual = nn.functional.one_hot(data.targets, outputs.shape[1]) - outputs.softmax(1)
    else:
        residual = data.targets.reshape(len(outputs), -1).double() - outputs
    ridge = RIDGE * kernel.diagonal().mean() * torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    return torch.linalg.solve(kernel + ridge, residual)


@dataclass(frozen=True)
class DistilledTraining(Defense):
    """Train on a distilled set.

    size: number of images of the set; by default half of the client's.
    iterations: steps of distillation.
    learning_rate: of distillation.
    ridge: of every kernel regression, in units of the kernel's mean diagonal.
    """

    mixes_images: ClassVar[bool] = True

    size: Annotated[int | None, POSITIVE] = None
    iterations: Annotated[int, POSITIVE] = 1000
    learning_rate: Annotated[float, POSITIVE] = 0.01
    ridge: Annotated[float, POSITIVE] = 1e-5

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
            targets = data.targets
            if classes:  # the loss takes class indices, kernel regression numbers
                outputs = count_outputs(context.model, (*data.inputs.shape[1:],))
                targets = encode_targets(targets, outputs, outputs, "mse")
            with torch.enable_grad():
                found = distill(data.inputs, targets, size, context.generator("distillation"), options, context.model)
            context.memory["images"] = found.images.tolist()
            context.memory["targets"] = (found.targets.argmax(1) if classes else found.targets).tolist()
        images = torch.tensor(context.memory["images"], dtype=data.inputs.dtype)
        targets = torch.tensor(context.memory["targets"], dtype=data.targets.dtype)
        return TrainingSet(images, targets, distilled=True), {"distilled": float(len(images))}


@register
@dataclass(frozen=True)
class KIPTraining(DistilledTraining):
    """Train on a few synthetic images that stand for the private ones (KIP).

    Kernel inducing points, Nguyen et al. 2021: the set from which kernel regression predicts the data.
    """

    name: ClassVar[str] = "kip"


@register
@dataclass(frozen=True)
class RKIPTraining(DistilledTraining):
    """Train on a few synthetic images that serve networks of any width, some near-copies of private ones (RKIP).

    KIP in the norm of the reconstruction loss, at infinite width.
    """

    name: ClassVar[str] = "rkip"


@register
@dataclass(frozen=True)
class RKIPFiniteTraining(DistilledTraining):
    """Train on a few synthetic images, as `rkip` does, made with the client's own network.

    RKIP at finite width: they are reconstructed from its linearized training, and relabelled.
    """

    name: ClassVar[str] = "rkip_finite"
