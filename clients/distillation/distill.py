"""From a training set to a few synthetic images that train in its place."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attacks.interface.attack import Progress, silent
from attacks.interface.errors import InputError, nearest
from attacks.kernel.infinite import InfiniteNTK
from clients.distillation.kip import KIP
from clients.distillation.result import Distilled
from clients.distillation.rkip import RKIP
from clients.distillation.rkip_finite import reconstruct_few

ITERATIONS = {"kip": 50_000, "rkip": 50_000, "rkip_finite": 2_000}
METHODS = tuple(ITERATIONS)
TRACE_EVERY = 100  # iterations between two looks at the loss: each look waits for a GPU


@dataclass(frozen=True)
class DistillOptions:
    """How to distill; the defaults are those of Loo et al. 2024, appendix H.4.

    method: `kip`, `rkip` or `rkip_finite`. iterations: default 50,000, and 2,000 for `rkip_finite`, each of which costs
    two passes through its network. ridge: of every kernel regression, in units of the kernel's mean diagonal. kernel:
    of the infinitely wide network, for `kip` and `rkip`. image_std: of the random images that these two start from.
    """

    method: str = "rkip"
    iterations: int | None = None
    learning_rate: float = 1e-3
    ridge: float = 1e-5
    image_std: float = 0.2
    kernel: InfiniteNTK = field(default_factory=InfiniteNTK)
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"distillation method is {self.method!r}, unknown{nearest(self.method, list(METHODS))}")
        for name in ("iterations", "learning_rate", "ridge", "image_std"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"distillation {name} is {value}, it has to be positive")

    @property
    def steps(self) -> int:
        return self.iterations or ITERATIONS[self.method]


def distill(
    images: Tensor,
    targets: Tensor,
    size: int,
    generator: torch.Generator,
    options: DistillOptions | None = None,
    model: nn.Module | None = None,
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
        return reconstruct_few(
            model, images, targets, size, generator, options.steps, options.ridge, options.device, progress
        )
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if options.device == "auto" else options.device)
    # in float64: at this ridge, float32 would leave three digits of α, and the kernels are small
    images, targets = images.to(device).double(), targets.to(device).double()
    loss_class = KIP if options.method == "kip" else RKIP
    objective = loss_class(options.kernel, images, targets, options.ridge)
    start = torch.randn((size, *images.shape[1:]), generator=generator, dtype=torch.float64) * options.image_std
    found, labels = start.to(device).requires_grad_(), balanced_targets(targets, size)
    optimizer = torch.optim.Adam([found], lr=options.learning_rate)
    trace: list[tuple[int, float]] = []
    for i in range(options.steps):
        optimizer.zero_grad(set_to_none=True)
        loss = objective(found, labels)
        loss.backward()
        optimizer.step()
        if i % TRACE_EVERY == 0:
            trace.append((i, float(loss.detach())))
            progress(i, options.steps, trace[-1][1])
            if not math.isfinite(trace[-1][1]):
                raise InputError(f"distillation diverged in iteration {i}: lower its learning rate")
    progress(options.steps, options.steps, trace[-1][1])
    return Distilled(found.detach().float().cpu(), labels.float().cpu(), tuple(trace))


def balanced_targets(targets: Tensor, size: int) -> Tensor:
    """(size, K): the distinct rows of `targets` (N, K), which code the classes, in turn."""
    codes = torch.unique(targets, dim=0)
    return codes[torch.arange(size, device=codes.device) % len(codes)]
