"""From a training set to a few synthetic images that train in its place."""

import math

import torch
from torch import Tensor, nn

from attacks.interface.attack import Progress, silent
from attacks.interface.errors import InputError
from clients.distillation.base import Distilled, DistillOptions
from clients.distillation.losses import KIP, RKIP
from clients.distillation.rkip_finite import reconstruct_few

TRACE_EVERY = 100  # iterations between two looks at the loss: each look waits for a GPU


def distill(
    images: Tensor,
    targets: Tensor,
    size: int,
    generator: torch.Generator,
    options: DistillOptions | None = None,
    model: nn.Module | None = None,
    *,
    progress: Progress = silent,
) -> Distilled:
    """`size` images and targets that stand for `images` (N, C, H, W), in the model's input space, and `targets` (N, K).

    model: the finite network of `rkip_finite`, at the parameters to linearize it at; the other methods need none.
    generator: of the images started from. Raises InputError where `size` does not lie between 1 and N.
    """
    options = options or DistillOptions()
    if not 1 <= size <= len(images):
        raise InputError(f"distilled size is {size}, it has to lie between 1 and the number of images, {len(images)}")
    if options.method == "rkip_finite":
        if model is None:
            raise InputError("distillation method 'rkip_finite' needs a network: pass `model`")
        return reconstruct_few(model, images, targets, size, generator, options, progress=progress)
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if options.device == "auto" else options.device)
    # in float64: at this ridge, float32 would leave three digits of α, and the kernels are small
    images, targets = images.to(device).double(), targets.to(device).double()
    loss_class = KIP if options.method == "kip" else RKIP
    objective = loss_class(options.kernel, images, targets, options.ridge)
    start = torch.randn((size, *images.shape[1:]), generator=generator, dtype=torch.float64) * options.image_std
    labels = balanced_targets(targets, size)
    found, trace = _descend(objective, start.to(device), labels, options, progress)
    return Distilled(found.float().cpu(), labels.float().cpu(), trace)


def _descend(
    objective: KIP, start: Tensor, labels: Tensor, options: DistillOptions, progress: Progress
) -> tuple[Tensor, tuple[tuple[int, float], ...]]:
    """(the images (S, C, H, W) to which Adam leads from `start`, the loss on the way).

    Raises InputError where the loss does not stay finite.
    """
    images = start.requires_grad_()
    optimizer = torch.optim.Adam([images], lr=options.learning_rate)
    trace: list[tuple[int, float]] = []
    for i in range(options.steps):
        optimizer.zero_grad(set_to_none=True)
        loss = objective(images, labels)
        loss.backward()
        optimizer.step()
        if i % TRACE_EVERY == 0:
            trace.append((i, float(loss.detach())))
            progress(i, options.steps, trace[-1][1])
            if not math.isfinite(trace[-1][1]):
                raise InputError(f"distillation diverged in iteration {i}: lower its learning rate")
    progress(options.steps, options.steps, trace[-1][1])
    return images.detach(), tuple(trace)


def balanced_targets(targets: Tensor, size: int) -> Tensor:
    """(size, K): the distinct rows of `targets` (N, K), which code the classes, in turn."""
    codes = torch.unique(targets, dim=0)
    return codes[torch.arange(size, device=codes.device) % len(codes)]
