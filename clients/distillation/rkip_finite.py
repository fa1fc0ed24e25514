"""RKIP-finite: distillation as an attack that looks for few images (Loo et al. 2024, section 7, appendix E)."""

import copy

import torch
from torch import Tensor, nn

from attacks.interface.attack import Progress, silent
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.kernel.empirical import empirical_ntk_blocks, kernel_duals
from attacks.ntk.attack import NTKAttack
from attacks.ntk.objective import make_objective
from clients.distillation.base import Distilled, DistillOptions


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
    """θ_f of linearized training to convergence from θ₀ = `state`: θ₀ + Σ_j α_j φ_θ₀(x_j) (Loo et al. 2024, eq. 3)."""
    count, outputs = targets.shape
    with torch.no_grad():
        initial = torch.func.functional_call(model, state, (images,)).reshape(count, outputs)
    kernel = empirical_ntk_blocks(model, state, images).reshape(count * outputs, count * outputs)
    duals = kernel_duals(kernel, (targets - initial).reshape(-1, 1), ridge).reshape(count, outputs)
    trained = {name: state[name] for name, parameter in model.named_parameters() if parameter.requires_grad}
    objective = make_objective(model, (images.shape[1], images.shape[2], images.shape[3]), trained, [state])
    step = objective.gradient_sum(images, duals[None], None)
    return {name: value + step[name] if name in step else value for name, value in state.items()}


def linearized_outputs(model: nn.Module, state: State, images: Tensor, duals: Tensor) -> Tensor:
    """f_θ₀(x_i) + Σ_j K_θ₀(x_i, x_j) α_j, (S, K), for images (S, C, H, W) and their duals (S, K)."""
    with torch.no_grad():
        initial = torch.func.functional_call(model, state, (images,)).reshape(duals.shape)
    return initial + torch.einsum("nkml,ml->nk", empirical_ntk_blocks(model, state, images), duals)
