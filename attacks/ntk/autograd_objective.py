"""The reconstruction loss of any network, by automatic differentiation."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attacks.interface.observation import State
from attacks.networks.mlp import Beta, softplus


class SoftplusForReLU(TorchFunctionMode):
    """While active, every ReLU, module or function, is softplus(βx)/β: its gradient is smooth in the input."""

    def __init__(self, beta: Beta):
        super().__init__()
        self.beta = beta
        self.relus = {F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.beta is not None and func in self.relus:
            return softplus(args[0], self.beta)
        return func(*args, **(kwargs or {}))


class AutogradObjective:
    """Any network: Σ_j α_j ∇f(x_j) = ∇ Σ_j α_j f(x_j), one backward pass; the loss differentiates it again."""

    def __init__(self, model: nn.Module, delta: State, views: Sequence[State], kept: State | None = None):
        self.model, self.kept = model, kept
        self.delta = delta if kept is None else {name: value * kept[name] for name, value in delta.items()}
        self.views = [
            {name: value.detach().requires_grad_(name in delta) for name, value in view.items()} for view in views
        ]

    def _sums(self, images: Tensor, duals: Tensor, beta: Beta, create_graph: bool) -> State:
        sums: State = {}
        for view, dual in zip(self.views, duals, strict=True):
            with SoftplusForReLU(beta):
                outputs = torch.func.functional_call(self.model, view, (images,))
            scalar = (outputs.reshape(len(images), -1) * dual).sum()
            grads = torch.autograd.grad(scalar, [view[name] for name in self.delta], create_graph=create_graph)
            for name, grad in zip(self.delta, grads, strict=True):
                counted = grad if self.kept is None else grad * self.kept[name]
                sums[name] = sums[name] + counted if name in sums else counted
        return sums

    def loss(self, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        sums = self._sums(images, duals, beta, create_graph=True)
        return torch.stack([((sums[name] - delta) ** 2).sum() for name, delta in self.delta.items()]).sum()

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: Beta) -> State:
        with torch.enable_grad():
            return {k: v.detach() for k, v in self._sums(images, duals, beta, create_graph=False).items()}

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        sums = self._sums(images, duals, beta, create_graph=True)
        return torch.stack([(sums[name] * direction[name]).sum() for name in direction]).sum()
