"""The reconstruction loss ‖Δθ − Σ_v Σ_j Σ_k α^v_jk ∇_θ f^k_{θ_v}(x_j)‖² (Loo et al. 2024, eq. 7, appendices F, I).

v runs over the kernels in use: one (final or initial parameters) or two (hybrid). Two implementations share one
interface: `DenseObjective` for plain MLPs, in closed form, and `AutogradObjective` for every other network.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.networks.mlp import Beta, find_dense_network
from attacks.ntk.autograd_objective import AutogradObjective
from attacks.ntk.mlp_objective import DenseObjective


class Objective(Protocol):
    """images: (M, C, H, W). duals: (V, M, K). beta: inverse temperature of softplus in place of ReLU, a
    number or a scalar tensor, or None."""

    delta: State

    def loss(self, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        """The squared residual, a scalar in squared parameter units, differentiable in images and duals."""

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: Beta) -> State:
        """Σ_v Σ_j Σ_k α^v_jk ∇f^k(x_j), by parameter; no graph is kept."""

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        """⟨direction, gradient sum⟩, a scalar, differentiable in images and duals."""


def make_objective(
    model: nn.Module,
    input_shape: tuple[int, int, int],
    delta: State,
    views: Sequence[State],
    double_backward: bool = False,
    kept: State | None = None,
) -> Objective:
    """The closed form where `model` is a plain MLP, autograd elsewhere (or everywhere, with `double_backward`).

    delta: trained parameters only. views: full state dicts, one per kernel, of the dtype and device to compute in.
    kept: 1 for the entries of delta that count and 0 for the others, None where all do.
    """
    network = None if double_backward else find_dense_network(model, input_shape)
    if network is not None:
        return DenseObjective(network, delta, views, kept)
    return AutogradObjective(model, delta, views, kept)


def backward_in_batches(objective: Objective, images: Tensor, duals: Tensor, beta: Beta, batch_size: int) -> Tensor:
    """Algorithm 2 (Loo et al. 2024, app. B): the loss, with its gradients accumulated batch by batch.

    The buffer G = Σ_j α_j φ(x_j) is summed first; then, for each batch B, the gradient of
    ‖Δθ − (G − detach(G_B) + G_B)‖² is that of 2⟨G − Δθ, G_B⟩. Memory is O(P + batch), the result that of the full loss.
    Accumulates into images.grad and duals.grad; returns the loss, a scalar without graph.
    """
    residual = {name: -delta for name, delta in objective.delta.items()}
    batches = [slice(i, i + batch_size) for i in range(0, len(images), batch_size)]
    for batch in batches:
        part = objective.gradient_sum(images[batch].detach(), duals[:, batch].detach(), beta)
        for name, value in part.items():
            residual[name] += value
    for batch in batches:
        (2 * objective.inner(residual, images[batch], duals[:, batch], beta)).backward(inputs=[images, duals])
    return torch.stack([(value**2).sum() for value in residual.values()]).sum()


def relative_residual(objective: Objective, images: Tensor, duals: Tensor) -> float:
    """‖Δθ − Σ‖ / ‖Δθ‖: what images (M, C, H, W) and duals (V, M, K) leave of the update, without any softplus."""
    return (squared_norm(_rest(objective, images, duals)) / squared_norm(objective.delta)) ** 0.5


def relative_residual_without(objective: Objective, images: Tensor, duals: Tensor) -> Tensor:
    """‖R‖ / ‖R + g_j‖ of every candidate, (M,), where g_j is its part of the gradient sum and R what all together leave
    of the update. Near 0: the update cannot be explained without it. images: (M, C, H, W). duals: (V, M, K)."""
    rest = _rest(objective, images, duals)
    squared = torch.stack([(value**2).sum() for value in rest.values()]).sum()
    ratios = []
    for j in range(len(images)):
        part = objective.gradient_sum(images[j : j + 1], duals[:, j : j + 1], None)
        without = torch.stack([((rest[name] + part[name]) ** 2).sum() for name in rest]).sum()
        ratios.append((squared / without.clamp_min(torch.finfo(without.dtype).tiny)).sqrt())
    return torch.stack(ratios)


def _rest(objective: Objective, images: Tensor, duals: Tensor) -> State:
    sums = objective.gradient_sum(images, duals, None)
    return {name: delta - sums[name] for name, delta in objective.delta.items()}


def squared_norm(state: State) -> float:
    """‖·‖² over all tensors of a state dict, summed in float64."""
    return sum(float((value.double() ** 2).sum()) for value in state.values())
