"""Single SGD steps recovered from a rank-deficient update: which images a step used, with which duals, where it led.

An image x that the step from θ used adds δ gᵀ to the update of the first fully connected layer, z = W h(x) + b, with
g = [h(x); 1] and δ = Jᵀ α: J (K, W) is the derivative of the outputs by z at (x, θ), α (K,) the step size times the
negative derivative of the loss by the outputs. So δ lies in the column space of the update, spanned by the orthonormal
U (W, R):

    λ(x) = min_α ‖Jᵀα − U Uᵀ Jᵀα‖² / ‖Jᵀα‖²

vanishes. This equation is independent of ρ(x), which asks for g in the row space. Where the rank R of the update falls
short of its size, both hold exactly, and δ gᵀ is a summand of it exactly if taking it off lowers the rank, that is if

    gᵀ Δ⁺ δ = 1    (Wedderburn's rank reduction),

which gives α its scale. All images of the step together give what it adds to the parameters, Σ_i Σ_k α_ik ∇f_k(x_i),
with neither learning rate nor loss nor labels known: images first used at a later step are then sought at the
parameters that the client had at that time. Momentum makes α too large by a common factor, which `momentum` finds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.networks.probing import run_network
from attacks.span.feature_space.network import FeatureNetwork


@dataclass(frozen=True)
class UpdateFactors:
    """The factors U S Vᵀ of the first fully connected layer's update, cut to its rank, in float64.

    left: (W, R). values: (R,). rows: (R, D + 1). exact: whether the rank falls short of the update's size, by a gap.
    """

    left: Tensor
    values: Tensor
    rows: Tensor
    exact: bool

    def duals(self, jacobian: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """The duals α (M, K) and the residuals λ (M,) of images with J (M, K, W) and g (M, D + 1)."""
        jacobian, points = jacobian.double(), points.double()
        basis, triangle = torch.linalg.qr(jacobian.mT)  # Jᵀ = Q R: (M, W, K), (M, K, K)
        beside = basis - self.left @ (self.left.T @ basis)
        _, singular, right = torch.linalg.svd(beside, full_matrices=False)
        delta = (basis @ right[:, -1, :, None])[..., 0]
        scale = ((points @ self.rows.T / self.values) * (delta @ self.left)).sum(1)
        duals = torch.linalg.lstsq(triangle, right[:, -1, :, None]).solution[..., 0]
        return duals / scale[:, None], singular[:, -1].square()


def output_jacobian(network: FeatureNetwork, state: State, images: Tensor) -> Tensor:
    """∂f_k / ∂z (M, K, W) at images (M, C, H, W), z the output of the first fully connected layer."""
    with torch.enable_grad():
        _, z, outputs = network.watch(state, images.detach().requires_grad_())
    sums = outputs.reshape(len(images), -1).sum(0)
    rows = [torch.autograd.grad(value, z, retain_graph=True)[0] for value in sums]
    return torch.stack(rows, 1)


def step_of(network: FeatureNetwork, state: State, names: tuple[str, ...], images: Tensor, duals: Tensor) -> State:
    """Σ_i Σ_k α_ik ∇f_k(x_i) in the parameters `names`, of images (M, C, H, W) and duals (M, K): what a step adds."""
    moved = {name: state[name].detach().clone().requires_grad_() for name in names}
    with torch.enable_grad():
        outputs = run_network(network.model, {**state, **moved}, images).reshape(len(images), -1)
        gradients = torch.autograd.grad((outputs * duals.to(outputs.dtype)).sum(), list(moved.values()))
    return {name: gradient.detach() for name, gradient in zip(moved, gradients, strict=True)}
