"""DP-SGD by opacus. A client keeps the history of opacus' accountant, and every round adds its steps."""

import copy
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor

from attacks.interface.errors import InputError, one_line
from attacks.interface.options import BELOW_ONE, POSITIVE, above_zero_to
from clients.config import ClientConfig, TrainingConfig
from clients.defenses.base import Defense, DefenseContext, DefenseEnvironment, ObservedUpdate, register
from clients.defenses.guarantee import Adversary, Guarantee, epsilon_of, multiplier_for, smallest_epsilon
from clients.training import TrainingLoop, planned_steps

LARGEST_EPSILON = 10_000.0


@register
@dataclass(frozen=True)
class DPSGD(Defense):
    """Limit what each image changes in a step, and add noise: a guarantee for every image, ε (DP-SGD).

    Abadi et al. 2016, by opacus: gradients clipped image by image, Gaussian noise, Poisson-sampled batches.

    max_grad_norm: bound on the norm of one image's gradient.
    epsilon: what all rounds of the federation together may spend at `delta`, default 8; the noise follows from it.
    noise_multiplier: given instead of epsilon, the standard deviation of the noise relative to max_grad_norm.
    delta: δ of that guarantee.
    """

    name: ClassVar[str] = "dp_sgd"
    tells_noise: ClassVar[tuple[Adversary, ...]] = ("server", "observer")

    epsilon: Annotated[float | None, above_zero_to(LARGEST_EPSILON)] = None
    noise_multiplier: Annotated[float | None, POSITIVE] = None
    delta: Annotated[float, BELOW_ONE] = 1e-5
    max_grad_norm: Annotated[float, POSITIVE] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise InputError("defense 'dp_sgd': epsilon and noise_multiplier exclude each other: give one of them")
        least = smallest_epsilon(self.delta)
        if self.epsilon is not None and self.epsilon < least:
            raise InputError(
                f"defense 'dp_sgd': epsilon is {self.epsilon:g}, at delta {self.delta:g} opacus' accountant tells "
                f"nothing below {least:.2g}: give a larger one, or the noise_multiplier"
            )

    def conflict(self, around: DefenseEnvironment) -> str:
        mixing = next((other.name for other in around.chain if other.mixes_images), None)
        if mixing is not None:
            return (
                f"defenses {mixing} and dp_sgd exclude each other: what {mixing} trains on depends on several private "
                "images at once, and clipping per input then bounds none of them: use one of the two, or local_dp, "
                "whose guarantee is for all that a client does"
            )
        if around.training.stop_at_loss is not None:
            return (
                "defense dp_sgd excludes training.stop_at_loss: when to stop would be read off private losses without "
                "noise: give epochs or steps alone"
            )
        return ""

    def check(self, context: DefenseContext) -> None:
        from opacus.validators import ModuleValidator  # 1.4 s, which runs without this defense are spared

        if context.statistics:
            raise InputError(
                "defense 'dp_sgd' bounds the gradient of each image, and BatchNorm in training mode mixes those of "
                "a batch: set training.batch_norm to eval and freeze its factors (model.frozen), or take GroupNorm"
            )
        problems = ModuleValidator.validate(copy.deepcopy(context.model).train(), strict=False)
        if problems:
            advice = one_line(problems[0], most=1000)
            raise InputError(f"defense 'dp_sgd' cannot handle model {type(context.model).__name__!r}: {advice}")
        if context.config.training.dynamics == "linearized":
            raise InputError("defense 'dp_sgd' needs training.dynamics standard, not linearized")

    def noise(self, config: ClientConfig, count: int) -> float:
        """Return the noise multiplier for a client of `count` images."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        training = config.training
        steps = planned_steps(training, count) * config.rounds
        epsilon = 8.0 if self.epsilon is None else self.epsilon
        return multiplier_for(epsilon, self.delta, _rate(training.batch_size, count), steps)

    def instrument(self, loop: TrainingLoop, count: int, context: DefenseContext) -> TrainingLoop:
        from opacus import GradSampleModule  # likewise

        from clients.defenses.differential_privacy.dp_optimizer import SeededDPOptimizer

        batch = min(context.config.training.batch_size or count, count)
        warnings.filterwarnings("ignore", message="Full backward hook")  # images need no gradient: that is expected
        module = GradSampleModule(context.model)
        optimizer = SeededDPOptimizer(
            loop.optimizer,
            noise_multiplier=self.noise(context.config, count),
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

    def privacy_spent(self, context: DefenseContext, steps: int, count: int) -> Guarantee:
        rate = _rate(context.config.training.batch_size, count)
        history = [tuple(entry) for entry in context.memory.get("history", [])]
        noise = self.noise(context.config, count)
        if history and history[-1][:2] == (noise, rate):  # as opacus' accountants add up steps that are alike
            steps += history.pop()[2]
        history.append((noise, rate, steps))
        context.memory["history"] = history
        epsilon = epsilon_of(tuple(history), self.delta)
        return Guarantee(self.name, epsilon, self.delta, "record", "both", "add_remove")

    def known_to_adaptive_attacker(self) -> dict[str, float]:
        return {"clip_norm": self.max_grad_norm}

    def noise_told(self, observed: ObservedUpdate) -> float | None:
        """Return z · C / B, the noise on every gradient, after the steps of SGD; None for adaptive optimizers."""
        training = observed.config.training
        if training.optimizer != "sgd":
            return None

        def of_client(count: int) -> float:
            batch = min(training.batch_size or count, count)
            on_gradient = self.noise(observed.config, count) * self.max_grad_norm / batch
            return on_gradient * step_gain(training, planned_steps(training, count))

        return observed.averaged(*map(of_client, observed.sizes))


def step_gain(training: TrainingConfig, steps: int) -> float:
    """Return √Σ_t w_t², where a unit of gradient at step t moves the parameters by w_t until the last step of SGD."""
    moved, velocity, gradient, total = 0.0, 0.0, 1.0, 0.0
    for _ in range(steps):  # one impulse, seen 1, 2, … steps later: what the last, the one before, … leaves at the end
        velocity = training.momentum * velocity + gradient + training.weight_decay * moved
        moved -= training.learning_rate * velocity
        total, gradient = total + moved * moved, 0.0
    return math.sqrt(total)


def poisson(count: int, batch: int, generator: torch.Generator) -> Callable[[], Iterable[Tensor]]:
    """Return a function for an epoch of Poisson-sampled batches, of every image with probability batch / count."""
    steps, rate = -(-count // batch), batch / count
    return lambda: ((torch.rand(count, generator=generator) < rate).nonzero()[:, 0] for _ in range(steps))


def _rate(batch_size: int | None, count: int) -> float:
    return min(batch_size or count, count) / count
