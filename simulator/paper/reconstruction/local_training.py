"""One data owner in this process: what experiments need that a federation does not record, such as every residual."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from clients.chain import Link
from clients.config import TrainingConfig
from clients.defenses import Defense, DefenseContext
from clients.training import TrainingLoop, TrainingReport, train
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner


@dataclass(frozen=True, eq=False)
class ResidualAccumulator(Defense):
    """Follows the duals of local training: it changes nothing, it adds up the residuals as SGD adds up gradients.

    One step of rate η and momentum μ on the mean of ½ (f − y)² moves θ by η v with v ← μ v + (1/N) Σ_j r_j ∇f(x_j),
    r_j = y_j − f(x_j). While ∇f stays what it was, Δθ = Σ_j α_j ∇f(x_j) where α_j sums up the same v over r_j / N: the
    discrete form of α_j ∝ ∫ r_j dt (Loo et al. 2024, appendix C.1). Full batches only.
    """

    name: ClassVar[str] = "residual_accumulator"

    targets: Tensor
    training: TrainingConfig
    duals: Tensor = field(init=False)
    velocity: Tensor = field(init=False)

    def __post_init__(self) -> None:
        for name in ("duals", "velocity"):
            object.__setattr__(self, name, torch.zeros_like(self.targets))

    def instrument(self, loop: TrainingLoop, count: int, context: DefenseContext) -> TrainingLoop:
        def predict(images: Tensor) -> Tensor:
            outputs = loop.predict(images)
            residual = self.targets - outputs.detach()
            self.velocity.mul_(self.training.momentum).add_(residual / count)
            self.duals.add_(self.training.learning_rate * self.velocity)
            return outputs

        return replace(loop, predict=predict)


@dataclass(frozen=True, eq=False)
class Fit:
    """A network that was trained. initial, final: states. duals: (N, K), summed up on the way."""

    model: nn.Module
    initial: State
    final: State
    duals: Tensor
    report: TrainingReport

    @property
    def delta(self) -> State:
        """Δθ in float64."""
        return {name: self.final[name].double() - self.initial[name].double() for name in self.initial}


def fit(cell: Cell, owner: Owner, training: TrainingConfig | None = None, dtype: torch.dtype = torch.float32) -> Fit:
    """Train a fresh network of the cell's scenario on the owner's images, squared error, full batches."""
    training = training or cell.scenario.training
    model, images, targets = owner.network("fit").to(dtype), owner.images.to(dtype), owner.targets.to(dtype)
    initial = {name: value.detach().clone() for name, value in model.state_dict().items()}
    followed = ResidualAccumulator(targets, training)
    context = DefenseContext(cell.client_config(use_gpu=False), 1, 0, model)
    report = train(model, images, targets, training, torch.Generator(), [Link(followed, context)])
    final = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Fit(model, initial, final, followed.duals, report)
