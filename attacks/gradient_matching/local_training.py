"""A client's local training as a differentiable function of its images and labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.gradient_matching.local_optimizer import START, LocalOptimizer
from attacks.interface.observation import State
from attacks.networks.probing import run_network

Loss = Literal["cross_entropy", "mse"]
Coding = tuple[float, float]  # targets of mean squared error: of the other classes, of the right one


def default_coding(outputs: int) -> Coding:
    """±1 for one output, −0.1 and 0.9 for several."""
    return (-1.0, 1.0) if outputs == 1 else (-0.1, 0.9)


def soft_loss(loss: Loss, outputs: Tensor, classes: Tensor, coding: Coding | None = None) -> Tensor:
    """Mean loss of outputs (N, K) against class probabilities (N, K); one-hot rows are ordinary labels.

    cross_entropy: softmax, or logistic for one output. mse: ½ Σ_k (f_k − y_k)² against the targets of `coding`, by
    default `default_coding`. With K = 1 `classes` holds the probability of class 1.
    """
    single = outputs.shape[1] == 1
    if loss == "mse":
        low, high = coding or default_coding(outputs.shape[1])
        return 0.5 * ((outputs - low - (high - low) * classes) ** 2).sum(1).mean()
    if single:
        return F.binary_cross_entropy_with_logits(outputs, classes)
    return -(classes * F.log_softmax(outputs, 1)).sum(1).mean()


def one_hot(labels: Tensor, outputs: int) -> Tensor:
    """Classes (N,) -> probabilities (N, K) as `soft_loss` takes them, in float64."""
    return labels.double()[:, None] if outputs == 1 else F.one_hot(labels.long(), outputs).double()


def step_weights(steps: int, momentum: float) -> Tensor:
    """By how many learning rates each step's gradient moves the last parameters, (steps,) in float64.

    Heavy-ball momentum μ carries the gradient of step t on: 1 + μ + … + μ^(steps − t).
    """
    return torch.cumsum(momentum ** torch.arange(steps, dtype=torch.float64), 0).flip(0)


@dataclass(frozen=True)
class LocalTraining:
    """A client's steps from `initial`.

    initial: full state dict, of the dtype and on the device to compute in. trained: the parameters that move. coding:
    of mean squared error, as of `soft_loss`.
    """

    model: nn.Module
    initial: State
    trained: tuple[str, ...]
    loss: Loss
    optimizer: LocalOptimizer
    coding: Coding | None = None

    def update(self, images: Tensor, classes: Tensor, batches: Sequence[Tensor]) -> State:
        """Δθ after one step per entry of `batches`, differentiable in images (N, C, H, W) and classes (N, K).

        One batch of all images gives −η ∇L, the gradient that Zhu et al. (2019) match. Memory grows with the steps.
        """
        start = {name: self.initial[name].detach().requires_grad_() for name in self.trained}
        delta = {name: torch.zeros_like(value) for name, value in start.items()}
        moments = START
        for batch in batches:
            current = {name: value + delta[name] for name, value in start.items()}
            outputs = run_network(self.model, {**self.initial, **current}, images[batch])
            loss = soft_loss(self.loss, outputs.reshape(len(batch), -1), classes[batch], self.coding)
            gradients = torch.autograd.grad(loss, [current[name] for name in self.trained], create_graph=True)
            named = dict(zip(self.trained, gradients, strict=True))
            added, moments = self.optimizer.step(current, named, moments)
            delta = {name: delta[name] + added[name] for name in self.trained}
        return delta
