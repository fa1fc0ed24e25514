"""Simulate a client's local training, differentiably in its images and labels, with SGD, Adam or AdamW as torch.optim
has them.

    SGD with heavy-ball momentum μ (Polyak 1964)        v ← μ v + g,  the first time v ← g;             θ ← θ − η v
    Adam (Kingma and Ba 2015, algorithm 1)              m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²,
                                                        θ ← θ − η (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
    AdamW (Loshchilov and Hutter 2019, algorithm 2)     the same, and θ ← θ − η λ θ

Weight decay λ adds λ θ to g, except in AdamW. Adam's first step is −η g / (|g| + ε). Wherever |g| is far above ε, it is
the sign of g, which has no derivative to move images by; a larger ε (`smoothing`) gives it one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import State
from attacks.networks.probing import run_network

KINDS = ("sgd", "adam", "adamw")
BETAS = (0.9, 0.999)  # torch.optim's default
EPS = 1e-8  # likewise


class Moments(NamedTuple):
    """What an optimizer remembers.

    steps: taken so far.
    first: velocities (SGD) or m.
    second: v, empty for SGD.
    """

    steps: int
    first: State
    second: State


START = Moments(0, {}, {})


@dataclass(frozen=True)
class LocalOptimizer:
    """The optimizer of a client.

    kind: sgd, adam or adamw.
    learning_rate: η.
    momentum: μ, of sgd.
    betas, eps: β₁, β₂ and ε of adam and adamw.
    weight_decay: λ.
    smoothing: added to ε, in units of the root mean square of √(v / (1 − β₂ᵗ)) over a parameter tensor; 0 for the
        client's own optimizer.
    """

    kind: str
    learning_rate: float
    momentum: float = 0.0
    betas: tuple[float, float] = BETAS
    weight_decay: float = 0.0
    eps: float = EPS
    smoothing: float = 0.0

    @classmethod
    def believed(cls, knowledge: Knowledge) -> tuple["LocalOptimizer", tuple[str, ...]]:
        """Return (the optimizer as far as the adversary was told of it, a warning that names the defaults in the place
        of what it was not told). knowledge: with learning_rate.

        Raises InputError for an optimizer that is not simulated.
        """
        kind = knowledge.optimizer or "sgd"
        if kind not in KINDS:
            raise InputError(f"knowledge optimizer is {kind!r}: simulated are {', '.join(KINDS)} (use 'ntk')")
        given: dict[str, object] = {"optimizer": knowledge.optimizer, "weight_decay": knowledge.weight_decay}
        given |= {"momentum": knowledge.momentum} if kind == "sgd" else {"betas": knowledge.betas}
        assumed = {"optimizer": kind, "weight_decay": 0.0, "momentum": 0.0, "betas": BETAS}
        unknown = ", ".join(f"{name} {assumed[name]}" for name, value in given.items() if value is None)
        rate, momentum, decay = knowledge.learning_rate or 1.0, knowledge.momentum or 0.0, knowledge.weight_decay or 0.0
        return cls(kind, rate, momentum, knowledge.betas or BETAS, decay), (
            f"unknown, so torch's defaults were assumed: {unknown}",
        ) if unknown else ()

    @property
    def adaptive(self) -> bool:
        """Whether every entry of a gradient is scaled by its own history."""
        return self.kind != "sgd"

    def step(self, parameters: State, gradients: State, moments: Moments) -> tuple[State, Moments]:
        """Take one step. Return (what it adds to the parameters, the moments after it), by the names of `gradients`."""
        decay, (steps, first, second) = self.weight_decay, moments
        if decay and self.kind != "adamw":
            gradients = {name: value + decay * parameters[name] for name, value in gradients.items()}
        if not self.adaptive:
            velocity = {k: self.momentum * first[k] + g if k in first else g for k, g in gradients.items()}
            return {k: -self.learning_rate * value for k, value in velocity.items()}, Moments(steps + 1, velocity, {})

        def averaged(beta: float, before: State, new: State) -> State:
            return {k: beta * before[k] + (1 - beta) * g if before else (1 - beta) * g for k, g in new.items()}

        squares = {k: g.square() for k, g in gradients.items()}
        averages = averaged(self.betas[0], first, gradients), averaged(self.betas[1], second, squares)
        moments = Moments(steps + 1, *averages)
        added = {name: self._adam(moments, name) for name in gradients}
        if decay and self.kind == "adamw":
            added = {name: value - self.learning_rate * decay * parameters[name] for name, value in added.items()}
        return added, moments

    def _adam(self, moments: Moments, name: str) -> Tensor:
        first, second = (1 - beta**moments.steps for beta in self.betas)
        size = root(moments.second[name]) / second**0.5
        softened = self.eps + self.smoothing * size.detach().square().mean().sqrt()
        return -self.learning_rate / first * moments.first[name] / (size + softened)


def root(value: Tensor) -> Tensor:
    """Return √ of values ≥ 0, with derivative 0 at 0: an entry whose gradients were all zero stays where it is."""
    positive = value > 0
    return torch.where(positive, value, 1.0).sqrt() * positive


Loss = Literal["cross_entropy", "mse"]
Coding = tuple[float, float]  # targets of mean squared error: of the other classes, of the right one


def default_coding(outputs: int) -> Coding:
    """Return the targets ±1 for one output, −0.1 and 0.9 for several."""
    return (-1.0, 1.0) if outputs == 1 else (-0.1, 0.9)


def soft_loss(loss: Loss, outputs: Tensor, classes: Tensor, coding: Coding | None = None) -> Tensor:
    """Return the mean loss of outputs (N, K) against class probabilities (N, K), one-hot for ordinary labels.

    cross_entropy: softmax, or logistic for one output. mse: ½ Σ_k (f_k − y_k)² against the targets of `coding`, by
    default `default_coding`. With K = 1 `classes` holds the probability of class 1.
    """
    if loss == "mse":
        low, high = coding or default_coding(outputs.shape[1])
        return 0.5 * ((outputs - low - (high - low) * classes) ** 2).sum(1).mean()
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(outputs, classes)
    return -(classes * F.log_softmax(outputs, 1)).sum(1).mean()


def one_hot(labels: Tensor, outputs: int) -> Tensor:
    """Return classes (N,) as the probabilities (N, K) that `soft_loss` takes, in float64."""
    return labels.double()[:, None] if outputs == 1 else F.one_hot(labels.long(), outputs).double()


def step_weights(steps: int, momentum: float) -> Tensor:
    """Return how many learning rates the gradient of step t has moved the parameters at the end, under momentum:
    1 + μ + … + μ^(steps − t), (steps,)."""
    return torch.cumsum(momentum ** torch.arange(steps, dtype=torch.float64), 0).flip(0)


@dataclass(frozen=True)
class LocalTraining:
    """A client's steps from `initial`.

    initial: full state dict, of the dtype and on the device to compute in.
    trained: the parameters that move.
    coding: of mean squared error, as of `soft_loss`.
    """

    model: nn.Module
    initial: State
    trained: tuple[str, ...]
    loss: Loss
    optimizer: LocalOptimizer
    coding: Coding | None = None

    def update(self, images: Tensor, classes: Tensor, batches: Sequence[Tensor]) -> State:
        """Return Δθ after a step on each of `batches`, differentiable in images (N, C, H, W) and classes (N, K)."""
        start = {name: self.initial[name].detach().requires_grad_() for name in self.trained}
        delta = {name: torch.zeros_like(value) for name, value in start.items()}
        moments = START
        for batch in batches:
            current = {name: value + delta[name] for name, value in start.items()}
            outputs = run_network(self.model, {**self.initial, **current}, images[batch])
            loss = soft_loss(self.loss, outputs.reshape(len(batch), -1), classes[batch], self.coding)
            wanted = [current[name] for name in self.trained]
            gradients = torch.autograd.grad(loss, wanted, create_graph=True, materialize_grads=True)
            named = dict(zip(self.trained, gradients, strict=True))
            added, moments = self.optimizer.step(current, named, moments)
            delta = {name: delta[name] + added[name] for name in self.trained}
        return delta
