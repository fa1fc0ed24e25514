"""DP-SGD (Abadi et al. 2016) by opacus: gradients clipped image by image, Gaussian noise, Poisson-sampled batches.

What a client has spent is kept over its rounds: every round adds its steps to the history of opacus' accountant.
"""

import copy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.options import check_values
from clients.defenses.base import Defense, DefenseContext, Metrics, register
from clients.defenses.differential_privacy.accounting import epsilon_of, multiplier_for, smallest_epsilon
from clients.training import TrainingLoop, planned_steps

LARGEST_EPSILON = 1000.0


@register
@dataclass(frozen=True)
class DPSGD(Defense):
    """max_grad_norm: bound on the norm of one image's gradient. epsilon: what all rounds of the federation together may
    spend at `delta`, default 8; the noise follows from it. noise_multiplier: given instead of epsilon, the standard
    deviation of the noise relative to max_grad_norm."""

    name: ClassVar[str] = "dp_sgd"

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        positive = ("noise_multiplier", "max_grad_norm")
        check_values(self, positive, below_one=("delta",), at_most={"epsilon": LARGEST_EPSILON})
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise InputError("defense 'dp_sgd': epsilon and noise_multiplier exclude each other: give one of them")
        least = smallest_epsilon(self.delta)
        if self.epsilon is not None and self.epsilon < least:
            raise InputError(
                f"defense 'dp_sgd': epsilon is {self.epsilon:g}, at delta {self.delta:g} opacus' accountant tells "
                f"nothing below {least:.2g}: give a larger one, or the noise_multiplier"
            )

    def check(self, context: DefenseContext) -> None:
        from opacus.validators import ModuleValidator

        problems = ModuleValidator.validate(copy.deepcopy(context.model).train(), strict=False)
        if problems:
            advice = " ".join(str(problems[0]).split())
            raise InputError(f"defense 'dp_sgd' cannot handle model {type(context.model).__name__!r}: {advice}")
        if context.config.training.dynamics == "linearized":
            raise InputError("defense 'dp_sgd' needs training.dynamics standard, not linearized")

    def noise(self, context: DefenseContext, count: int) -> float:
        """The noise multiplier in force for a client of `count` images."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        training = context.config.training
        steps = planned_steps(training, count) * context.config.rounds
        epsilon = 8.0 if self.epsilon is None else self.epsilon
        return multiplier_for(epsilon, self.delta, _rate(training.batch_size, count), steps)

    def instrument(self, loop: TrainingLoop, count: int, context: DefenseContext) -> TrainingLoop:
        from opacus import GradSampleModule

        from clients.defenses.differential_privacy.dp_optimizer import SeededDPOptimizer

        batch = min(context.config.training.batch_size or count, count)
        warnings.filterwarnings("ignore", message="Full backward hook")  # images need no gradient: that is expected
        module = GradSampleModule(context.model)
        optimizer = SeededDPOptimizer(
            loop.optimizer,
            noise_multiplier=self.noise(context, count),
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=batch,
            generator=context.generator("noise"),
        )
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]

        def predict(images: Tensor) -> Tensor:
            if len(images):
                outputs: Tensor = module(images)
                return outputs
            for parameter in trained:  # an empty Poisson batch: no gradient, and noise all the same
                cast(Any, parameter).grad_sample = parameter.new_zeros((0, *parameter.shape))
            with torch.no_grad():
                one: Tensor = context.model(images.new_zeros(1, *images.shape[1:]))
            return one[:0].requires_grad_()

        return TrainingLoop(predict, optimizer, poisson(count, batch, context.generator("sampling")))

    def privacy_spent(self, context: DefenseContext, steps: int, count: int) -> Metrics:
        rate = _rate(context.config.training.batch_size, count)
        history = [tuple(entry) for entry in context.memory.get("history", [])]
        noise = self.noise(context, count)
        if history and history[-1][:2] == (noise, rate):  # as opacus' accountants add up steps that are alike
            steps += history.pop()[2]
        history.append((noise, rate, steps))
        context.memory["history"] = history
        return {"epsilon": epsilon_of(tuple(history), self.delta)}

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"clip_norm": self.max_grad_norm}


def poisson(count: int, batch: int, generator: torch.Generator) -> Callable[[], Iterable[Tensor]]:
    """One epoch of Poisson-sampled batches: every image is in each with probability batch / count."""
    steps, rate = -(-count // batch), batch / count
    return lambda: ((torch.rand(count, generator=generator) < rate).nonzero()[:, 0] for _ in range(steps))


def _rate(batch_size: int | None, count: int) -> float:
    return min(batch_size or count, count) / count
