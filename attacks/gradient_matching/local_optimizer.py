"""A client's optimizer as a differentiable function of its gradients: SGD, Adam and AdamW as torch.optim takes them.

    SGD with heavy-ball momentum μ (Polyak 1964)        v ← μ v + g,  the first time v ← g;             θ ← θ − η v
    Adam (Kingma and Ba 2015, algorithm 1)              m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²,
                                                        θ ← θ − η (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
    AdamW (Loshchilov and Hutter 2019, algorithm 2)     the same, and θ ← θ − η λ θ

Weight decay λ adds λ θ to g, except in AdamW. Adam's first step is −η g / (|g| + ε), the signs of g wherever |g| is far
above ε, and signs have no derivative by which images could be moved: a larger ε makes one.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import State

KINDS = ("sgd", "adam", "adamw")
BETAS = (0.9, 0.999)  # torch.optim's default
EPS = 1e-8  # likewise


class Moments(NamedTuple):
    """What an optimizer remembers. steps: taken so far. first: velocities (SGD) or m. second: v, empty for SGD."""

    steps: int
    first: State
    second: State


START = Moments(0, {}, {})


@dataclass(frozen=True)
class LocalOptimizer:
    """kind: sgd, adam or adamw. learning_rate: η. momentum: μ, of sgd. betas, eps: β₁, β₂ and ε of adam and adamw.
    weight_decay: λ. smoothing: is added to ε, in units of the root mean square of √(v / (1 − β₂ᵗ)) over a parameter
    tensor; 0 is the optimizer as it is.
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
        """(the optimizer that the adversary was told of, a warning that names what torch's defaults stand for).

        knowledge: with learning_rate. Raises InputError for an optimizer that is not simulated.
        """
        kind = knowledge.optimizer or "sgd"
        if kind not in KINDS:
            raise InputError(f"knowledge optimizer is {kind!r}: simulated are {', '.join(KINDS)} (use 'ntk')")
        given: dict[str, object] = {"optimizer": knowledge.optimizer, "weight_decay": knowledge.weight_decay}
        given |= {"momentum": knowledge.momentum} if kind == "sgd" else {"betas": knowledge.betas}
        assumed = {"optimizer": kind, "weight_decay": 0.0, "momentum": 0.0, "betas": BETAS}
        unknown = ", ".join(f"{name} {assumed[name]}" for name, value in given.items() if value is None)
        made = cls(
            kind,
            knowledge.learning_rate or 1.0,
            knowledge.momentum or 0.0,
            knowledge.betas or BETAS,
            knowledge.weight_decay or 0.0,
        )
        return made, (f"unknown, so torch's defaults were assumed: {unknown}",) if unknown else ()

    @property
    def adaptive(self) -> bool:
        """Whether every entry of a gradient is scaled by its own history."""
        return self.kind != "sgd"

    def step(self, parameters: State, gradients: State, moments: Moments) -> tuple[State, Moments]:
        """(what one step adds to the parameters, the moments after it), all by the names of `gradients`."""
        decay = self.weight_decay
        if decay and self.kind != "adamw":
            gradients = {name: value + decay * parameters[name] for name, value in gradients.items()}
        if not self.adaptive:
            moments = self._accumulated(gradients, moments)
            return {name: -self.learning_rate * value for name, value in moments.first.items()}, moments
        moments = self._averaged(gradients, moments)
        added = {name: self._adam(moments, name) for name in gradients}
        if decay and self.kind == "adamw":
            added = {name: value - self.learning_rate * decay * parameters[name] for name, value in added.items()}
        return added, moments

    def _accumulated(self, gradients: State, moments: Moments) -> Moments:
        before = moments.first
        velocity = {k: self.momentum * before[k] + g if k in before else g for k, g in gradients.items()}
        return Moments(moments.steps + 1, velocity, {})

    def _averaged(self, gradients: State, moments: Moments) -> Moments:
        def average(beta: float, before: State, new: State) -> State:
            return {
                k: beta * before[k] + (1 - beta) * value if before else (1 - beta) * value for k, value in new.items()
            }

        squares = {name: value.square() for name, value in gradients.items()}
        first, second = (
            average(self.betas[0], moments.first, gradients),
            average(self.betas[1], moments.second, squares),
        )
        return Moments(moments.steps + 1, first, second)

    def _adam(self, moments: Moments, name: str) -> Tensor:
        first, second = (1 - beta**moments.steps for beta in self.betas)
        size = root(moments.second[name]) / second**0.5
        softened = self.eps + self.smoothing * size.detach().square().mean().sqrt()
        return -self.learning_rate / first * moments.first[name] / (size + softened)


def root(value: Tensor) -> Tensor:
    """√ of values ≥ 0 with the derivative 0 at 0, where that of the square root is infinite.

    An entry whose gradients were all zero, as those of a dead unit, stays where it is when the images change a little.
    """
    positive = value > 0
    return torch.where(positive, value, 1.0).sqrt() * positive
