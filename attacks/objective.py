"""The reconstruction loss ‖Δθ − Σ_v Σ_j Σ_k α^v_jk ∇_θ f^k_{θ_v}(x_j)‖² and its parts (Loo et al. 2024, eq. 7, app. F, I).

v runs over the kernels in use: one (final or initial parameters) or two (hybrid). Two implementations share one
interface: `DenseObjective` for plain MLPs, in closed form, and `AutogradObjective` for every other network.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attacks.dense import DenseNetwork, find_dense_network
from attacks.observation import State


class Objective(Protocol):
    """images: (M, C, H, W). duals: (V, M, K). beta: inverse temperature of softplus in place of ReLU, or None."""

    delta: State

    def loss(self, images: Tensor, duals: Tensor, beta: float | None) -> Tensor:
        """The squared residual, a scalar in squared parameter units, differentiable in images and duals."""

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: float | None) -> State:
        """Σ_v Σ_j Σ_k α^v_jk ∇f^k(x_j), by parameter; no graph is kept."""

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: float | None) -> Tensor:
        """⟨direction, gradient sum⟩, a scalar, differentiable in images and duals."""


def make_objective(
    model: nn.Module, input_shape: tuple[int, int, int], delta: State, views: Sequence[State], double_backward: bool = False
) -> Objective:
    """The closed form where `model` is a plain MLP, autograd elsewhere (or everywhere, with `double_backward`).

    delta: trained parameters only. views: full state dicts, one per kernel, of the dtype and device to compute in.
    """
    network = None if double_backward else find_dense_network(model, input_shape)
    if network is not None:
        return DenseObjective(network, delta, views)
    return AutogradObjective(model, delta, views)


class DenseObjective:
    """A plain MLP. Per layer the gradient sum is DᵀA, with one row of D (out) and A (in, and 1 for the bias) per
    candidate and kernel."""

    def __init__(self, network: DenseNetwork, delta: State, views: Sequence[State]):
        self.network, self.delta, self.views = network, delta, list(views)
        self.squared_norm = float(sum((d.double() ** 2).sum() for d in delta.values()))

    def _factors(self, images: Tensor, duals: Tensor, beta: float | None) -> list[tuple[Tensor, Tensor]]:
        layers = [self.network.factors(view, images, dual, beta) for view, dual in zip(self.views, duals, strict=True)]
        return [tuple(torch.cat(parts) for parts in zip(*layer, strict=True)) for layer in zip(*layers, strict=True)]

    def loss(self, images: Tensor, duals: Tensor, beta: float | None) -> Tensor:
        total: Tensor | float = self.squared_norm
        for weight, bias, (d, a) in self._layers(images, duals, beta):
            if len(d) ** 2 <= d.shape[1] * a.shape[1] / 16:
                # ‖DᵀA‖² = ⟨DDᵀ, AAᵀ⟩: no matrix of the layer's size is formed, far fewer passes over memory
                signal_gram, input_gram = d @ d.T, torch.zeros((), dtype=d.dtype, device=d.device)
                if weight is not None:
                    input_gram = input_gram + a @ a.T
                    total = total - 2 * (d * (a @ weight.T)).sum()
                if bias is not None:
                    input_gram = input_gram + 1
                    total = total - 2 * (d.sum(0) @ bias)
                total = total + (signal_gram * input_gram).sum()
            else:
                if weight is not None:
                    total = total - (weight**2).sum() + ((d.T @ a - weight) ** 2).sum()
                if bias is not None:
                    total = total - (bias**2).sum() + ((d.sum(0) - bias) ** 2).sum()
        return total

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: float | None) -> State:
        sums: State = {}
        with torch.no_grad():
            for weight, bias, (d, a) in zip(
                self.network.weights, self.network.biases, self._factors(images, duals, beta), strict=True
            ):
                if weight in self.delta:
                    sums[weight] = d.T @ a
                if bias in self.delta:
                    sums[bias] = d.sum(0)
        return sums

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: float | None) -> Tensor:
        total = duals.new_zeros(())
        factors = self._factors(images, duals, beta)
        for weight, bias, (d, a) in zip(self.network.weights, self.network.biases, factors, strict=True):
            if weight in direction:
                total = total + (d * (a @ direction[weight].T)).sum()
            if bias in direction:
                total = total + d.sum(0) @ direction[bias]
        return total

    def _layers(self, images: Tensor, duals: Tensor, beta: float | None):
        """(Δ of the weight or None, Δ of the bias or None, (D, A)) of each trained layer."""
        factors = self._factors(images, duals, beta)
        for weight, bias, pair in zip(self.network.weights, self.network.biases, factors, strict=True):
            if weight in self.delta or bias in self.delta:
                yield self.delta.get(weight), self.delta.get(bias), pair


class SoftplusForReLU(TorchFunctionMode):
    """While active, every ReLU, module or function, is softplus(βx)/β: its gradient is smooth in the input."""

    def __init__(self, beta: float | None):
        super().__init__()
        self.beta = beta
        self.relus = {F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.beta is not None and func in self.relus:
            return F.softplus(args[0], self.beta)
        return func(*args, **(kwargs or {}))


class AutogradObjective:
    """Any network: Σ_j α_j ∇f(x_j) = ∇ Σ_j α_j f(x_j), one backward pass of a scalar; the loss differentiates it again."""

    def __init__(self, model: nn.Module, delta: State, views: Sequence[State]):
        self.model, self.delta = model, delta
        self.views = [
            {name: value.detach().requires_grad_(name in delta) for name, value in view.items()} for view in views
        ]

    def _sums(self, images: Tensor, duals: Tensor, beta: float | None, create_graph: bool) -> State:
        sums: State = {}
        for view, dual in zip(self.views, duals, strict=True):
            with SoftplusForReLU(beta):
                outputs = torch.func.functional_call(self.model, view, (images,))
            scalar = (outputs.reshape(len(images), -1) * dual).sum()
            grads = torch.autograd.grad(scalar, [view[name] for name in self.delta], create_graph=create_graph)
            for name, grad in zip(self.delta, grads, strict=True):
                sums[name] = sums[name] + grad if name in sums else grad
        return sums

    def loss(self, images: Tensor, duals: Tensor, beta: float | None) -> Tensor:
        sums = self._sums(images, duals, beta, create_graph=True)
        return sum(((sums[name] - delta) ** 2).sum() for name, delta in self.delta.items())

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: float | None) -> State:
        with torch.enable_grad():
            return {k: v.detach() for k, v in self._sums(images, duals, beta, create_graph=False).items()}

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: float | None) -> Tensor:
        sums = self._sums(images, duals, beta, create_graph=True)
        return sum((sums[name] * direction[name]).sum() for name in direction)


def backward_in_batches(
    objective: Objective, images: Tensor, duals: Tensor, beta: float | None, batch_size: int
) -> Tensor:
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
        (2 * objective.inner(residual, images[batch], duals[:, batch], beta)).backward()
    return sum((value**2).sum() for value in residual.values())
