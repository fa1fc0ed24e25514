"""Distill a training set to a few synthetic images that train in its place (Loo et al. 2024, section 7, appendices E,
H).

KIP and RKIP descend on losses of the infinitely wide network; RKIP-finite is an attack that looks for few images.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor, nn

from attacks.base import Progress, silent
from attacks.interface.errors import InputError, did_you_mean
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State, trained_names
from attacks.interface.options import POSITIVE, check_values
from attacks.interface.torch_tools import choose_device, constant, descend
from attacks.kernel.empirical import empirical_ntk_blocks, kernel_duals
from attacks.kernel.infinite import InfiniteNTK
from attacks.networks.probing import outputs_at
from attacks.ntk.attack import NTKAttack
from attacks.ntk.objective import make_objective

Kernel = Callable[..., Tensor]
"""(N, C, H, W) images, and (M, C, H, W) others or none -> (N, M) or (N, N); differentiable."""


@dataclass(frozen=True, eq=False)
class KIP:
    """‖y_T − K_TS K_SS⁻¹ y_S‖²: images on which kernel regression predicts the training set (Nguyen et al. 2021).

    images: (T, C, H, W), the training set.
    targets: (T, K).
    ridge: added to every kernel that is inverted, in units of its mean diagonal.
    """

    kernel: Kernel
    images: Tensor
    targets: Tensor
    ridge: float

    def __call__(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a distilled set, (S, C, H, W) and (S, K): a scalar in squared units of the targets."""
        duals = kernel_duals(self.kernel(images), targets, self.ridge)
        return (self.targets - self.kernel(self.images, images) @ duals).square().sum()


@dataclass(frozen=True, eq=False)
class RKIP(KIP):
    """‖y_T − K_TS α_S‖²_{K_TT⁻¹} + α_Sᵀ (K_SS − K_ST K_TT⁻¹ K_TS) α_S with α_S = K_SS⁻¹ y_S (Loo et al. 2024,
    Theorem 2, appendix D).

    With α_T = K_TT⁻¹ y_T, once for all iterations, it is y_Tᵀα_T − 2 α_Tᵀ K_TS α_S + α_Sᵀ K_SS α_S, the distance
    ‖Σ_T α_T φ − Σ_S α_S φ‖² that the attack minimizes.
    """

    @cached_property
    def duals(self) -> Tensor:
        """α_T, (T, K)."""
        return kernel_duals(self.kernel(self.images), self.targets, self.ridge)

    def __call__(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a distilled set, (S, C, H, W) and (S, K): a scalar, a squared distance between updates."""
        kernel = self.kernel(images)
        duals = kernel_duals(kernel, targets, self.ridge)
        cross = (self.duals * (self.kernel(self.images, images) @ duals)).sum()
        return (self.targets * self.duals).sum() - 2 * cross + (duals * (kernel @ duals)).sum()


ITERATIONS = {"kip": 50_000, "rkip": 50_000, "rkip_finite": 2_000}
METHODS = tuple(ITERATIONS)
TRACE_EVERY = 100  # iterations between two looks at the loss: each look waits for a GPU


@dataclass(frozen=True)
class DistillOptions:
    """How to distill; the defaults are those of Loo et al. 2024, appendix H.4.

    method: `kip`, `rkip` or `rkip_finite`.
    iterations: default 50,000, and 2,000 for `rkip_finite`, each of which costs two passes through its network.
    ridge: of every kernel regression, in units of the kernel's mean diagonal.
    kernel: of the infinitely wide network, for `kip` and `rkip`.
    image_std: of the random images that these two start from.
    """

    method: str = "rkip"
    iterations: Annotated[int | None, POSITIVE] = None
    learning_rate: Annotated[float, POSITIVE] = 1e-3
    ridge: Annotated[float, POSITIVE] = 1e-5
    image_std: Annotated[float, POSITIVE] = 0.2
    kernel: InfiniteNTK = field(default_factory=InfiniteNTK)
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(
                f"distillation method is {self.method!r}, unknown{did_you_mean(self.method, list(METHODS))}"
            )
        check_values(self, "distillation")

    @property
    def steps(self) -> int:
        return self.iterations or ITERATIONS[self.method]


@dataclass(frozen=True)
class Distilled:
    """A distilled set.

    images: (S, C, H, W), in the input space of the images they stand for, float32.
    targets: (S, K), float32.

    trace: (iteration, loss) every hundred iterations.
    """

    images: Tensor
    targets: Tensor
    trace: tuple[tuple[int, float], ...]


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
    """Return `size` images and targets that stand for `images` (N, C, H, W), in the model's input space, and `targets`
    (N, K).

    model: the finite network of `rkip_finite`, at the parameters to linearize it at; the other methods need none.
    generator: of the images started from. Raise InputError if `size` does not lie between 1 and N.
    """
    options = options or DistillOptions()
    if not 1 <= size <= len(images):
        raise InputError(f"distilled size is {size}, it has to lie between 1 and the number of images, {len(images)}")
    if options.method == "rkip_finite":
        if model is None:
            raise InputError("distillation method 'rkip_finite' needs a network: pass `model`")
        return reconstruct_few(model, images, targets, size, generator, options, progress=progress)
    device = choose_device(options.device)
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
    """Return (the images (S, C, H, W) that Adam reaches, the loss on the way); raise InputError if it diverges."""
    images = start.requires_grad_()
    trace: list[tuple[int, float]] = []

    def gradients(i: int) -> tuple[Tensor, ...]:
        loss = objective(images, labels)
        found = torch.autograd.grad(loss, images)
        if i % TRACE_EVERY == 0:
            trace.append((i, float(loss.detach())))
            progress(i, options.steps, trace[-1][1])
            if not math.isfinite(trace[-1][1]):
                raise InputError(f"distillation diverged in iteration {i}: lower its learning rate")
        return found

    descend(gradients, [(images, options.learning_rate)], options.steps, constant)
    progress(options.steps, options.steps, trace[-1][1])
    return images.detach(), tuple(trace)


def balanced_targets(targets: Tensor, size: int) -> Tensor:
    """Return (size, K): the distinct rows of `targets` (N, K), which code the classes, in turn."""
    codes = torch.unique(targets, dim=0)
    return codes[torch.arange(size, device=codes.device) % len(codes)]


def reconstruct_few(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    size: int,
    generator: torch.Generator,
    options: DistillOptions,
    *,
    progress: Progress = silent,
) -> Distilled:
    """Reconstruct `size` images from a network that was trained, linearized, on `images`, and relabel them.

    The update Δθ = Σ_T α φ_θ₀ is that of training to convergence, in closed form: α = K_θ₀⁻¹ (y − f_θ₀). The NTK
    attack finds x̂ and α̂ with Σ_S α̂ φ_θ₀(x̂) ≈ Δθ; the labels are y_S = f_θ₀(x̂) + K_θ₀(x̂, x̂) α̂, what the linearized
    network with that sum for an update would predict.
    Shapes as of `distill`; of the options, `iterations`, `ridge` and `device` apply.
    """
    model = copy.deepcopy(model).eval()  # the caller's stays in its mode
    state = {name: value.detach().cpu().double() for name, value in model.state_dict().items()}
    shape = (images.shape[1], images.shape[2], images.shape[3])
    final = linearized_update(model, state, images.cpu().double(), targets.cpu().double(), options.ridge)
    observation = Observation(model, ((state, final),), shape)
    knowledge = Knowledge(
        num_private=len(images),
        pixel_mean=(0.0,) * shape[0],  # the images come as the network sees them
        pixel_range=(float(images.min()), float(images.max())),
    )
    attack = NTKAttack(kernel="initial", num_candidates=size, iterations=options.steps, device=options.device)
    found = attack.run(observation, knowledge, generator, progress)
    assert found.duals is not None
    distilled = found.images.double()
    return Distilled(
        found.images,
        linearized_outputs(model, state, distilled, found.duals[0].double()).float(),
        found.loss_trace,
    )


def linearized_update(model: nn.Module, state: State, images: Tensor, targets: Tensor, ridge: float) -> State:
    """Return θ_f of linearized training to convergence from θ₀ = `state`: θ₀ + Σ_j α_j φ_θ₀(x_j) (eq. 3)."""
    count, outputs = targets.shape
    initial = outputs_at(model, state, images)
    kernel = empirical_ntk_blocks(model, state, images).reshape(count * outputs, count * outputs)
    duals = kernel_duals(kernel, (targets - initial).reshape(-1, 1), ridge).reshape(count, outputs)
    trained = {name: state[name] for name in trained_names(model)}
    objective = make_objective(model, (images.shape[1], images.shape[2], images.shape[3]), trained, [state])
    step = objective.gradient_sum(images, duals[None], None)
    return {name: value + step[name] if name in step else value for name, value in state.items()}


def linearized_outputs(model: nn.Module, state: State, images: Tensor, duals: Tensor) -> Tensor:
    """Return f_θ₀(x_i) + Σ_j K_θ₀(x_i, x_j) α_j, (S, K), for images (S, C, H, W) and their duals (S, K)."""
    kernel = empirical_ntk_blocks(model, state, images)
    return outputs_at(model, state, images) + torch.einsum("nkml,ml->nk", kernel, duals)
