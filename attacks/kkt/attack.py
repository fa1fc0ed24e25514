"""Reconstruction from trained parameters alone (Haim et al. 2022; several classes: Buzaglo et al. 2023).

A homogeneous network that gradient flow trained to fit its data, under cross-entropy, converges in direction to a KKT
point of margin maximization, where θ = Σ_i λ_i y_i ∇f(θ; x_i) with λ ≥ 0. Candidates are moved until θ_f is such a sum.
This asks for less than the other attacks: no θ₀. It also finds less: few clients train that long, and θ_f still
contains θ₀ (Loo et al. 2024, appendix A).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from attacks.interface.attack import Attack, Progress, Reconstruction, register, report_restart, silent
from attacks.interface.devices import cast_state, choose_device
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.options import check_values
from attacks.ntk.attack import inverse_temperature, outside_range, squared_norm
from attacks.ntk.objective import Objective, make_objective, unexplained_without
from attacks.update.private_set import Belief, check_told

NAME = "kkt"
TRACE_EVERY = 100  # iterations between two looks at the loss: each look waits for a GPU


@register
@dataclass(frozen=True)
class KKTAttack(Attack):
    """Find images x_j and multipliers λ_j ≥ 0 with θ_f = Σ_j λ_j y_j ∇f(θ_f; x_j).

    With several outputs y_j f is the margin f_y − max_k≠y f_k. candidates: how many, as a multiple of the number of
    private images; their labels are those told, in turn, or all classes alike. learning_rate: of the images, and of the
    multipliers at their scale. image_std: of the start. dual_floor: λ below this share of the scale they start at
    is penalized, `dual_penalty` times (Haim et al.: candidates with λ = 0 are of no use).
    range_penalty: of pixels out of range. restarts: the start with the smallest residual is returned.
    """

    name: ClassVar[str] = NAME

    candidates: float = 2.0
    iterations: int = 10_000
    learning_rate: float = 0.02
    image_std: float = 0.2
    dual_floor: float = 0.05
    dual_penalty: float = 1.0
    range_penalty: float = 0.1
    restarts: int = 1
    precision: Literal["float32", "float64"] = "float32"
    device: str = "auto"

    def __post_init__(self) -> None:
        check_values(
            self,
            ("candidates", "iterations", "learning_rate", "image_std", "restarts"),
            not_negative=("dual_floor", "dual_penalty", "range_penalty"),
            choices={"precision": ("float32", "float64")},
        )

    def check(self, observation: Observation, knowledge: Knowledge) -> None:
        check_told(NAME, observation, knowledge)

    def reconstruct(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> Reconstruction:
        """Run the attack. num_private, labels, pixel_mean and pixel_range are used where known.

        Where they are not told, the number of images and the mean are read off the pair of checkpoints: the only use
        of the initial one. residual of a candidate: ‖R‖ / ‖R + g_j‖, as in the NTK attack; duals: λ_j y_j.
        """
        start = time.perf_counter()
        self.check(observation, knowledge)
        belief = Belief.of(NAME, observation, knowledge)
        problem = self.problem(observation, knowledge, belief)
        rounds = len(observation.pairs)
        ignored = (f"only the last of {rounds} returned checkpoints is used",) if rounds > 1 else ()
        solutions = []
        for restart in range(self.restarts):
            before, total = restart * self.iterations, self.restarts * self.iterations
            solutions.append(problem.solve(generator, partial(report_restart, progress, before, total)))
        best = min(solutions, key=lambda solution: solution.residual)
        share = unexplained_without(problem.objective, best.images, best.duals)
        order = share.argsort(stable=True)
        return Reconstruction(
            images=best.images[order].float().cpu(),
            residual=share[order].float().cpu(),
            pixel_mean=belief.pixel_mean,
            duals=best.duals[:, order].float().cpu(),
            num_inferred=belief.num_inferred,
            relative_residual=best.residual,
            loss_trace=best.trace,
            warnings=(*belief.warnings, *ignored),
            seconds=time.perf_counter() - start,
        )

    def problem(self, observation: Observation, knowledge: Knowledge, belief: Belief) -> "_Problem":
        device, dtype = choose_device(self.device), getattr(torch, self.precision)
        final = cast_state(observation.final, device, dtype)
        target = {name: final[name] for name in observation.trainable}
        model = observation.model.to(device).eval()
        objective = make_objective(model, observation.input_shape, target, [final])
        count = max(1, round(self.candidates * belief.num_private))
        probe = torch.zeros((1, *observation.input_shape), device=device, dtype=dtype)

        def outputs(images: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.func.functional_call(model, final, (images,)).reshape(len(images), -1)

        classes = max(2, outputs(probe).shape[1])
        known = torch.tensor(knowledge.labels if knowledge.labels is not None else range(classes))
        labels = known.repeat(math.ceil(count / len(known)))[:count].to(device)
        shape = (count, *observation.input_shape)
        return _Problem(self, objective, outputs, labels, shape, belief.bounds(knowledge, probe))


def margin_directions(outputs: Tensor, labels: Tensor) -> Tensor:
    """The gradient of every candidate's margin in its outputs, (M, K): e_y − e_k for the largest other output k
    (Buzaglo et al. 2023); with one output ±1."""
    if outputs.shape[1] == 1:
        return (2 * labels - 1).to(outputs.dtype)[:, None]
    rivals = outputs.scatter(1, labels[:, None], -torch.inf).argmax(1)
    directions = torch.zeros_like(outputs).scatter(1, labels[:, None], 1.0)
    return directions.scatter(1, rivals[:, None], -1.0)


@dataclass(frozen=True)
class _Problem:
    """One optimization, ready to be started from any random numbers. labels: (M,). bounds: of the input."""

    attack: KKTAttack
    objective: Objective
    outputs: Callable[[Tensor], Tensor]
    labels: Tensor
    shape: tuple[int, int, int, int]
    bounds: tuple[Tensor, Tensor]

    def solve(self, generator: torch.Generator, progress: Callable[[int, float], None]) -> "_Solution":
        attack, like = self.attack, self.bounds[0]
        images = torch.randn(self.shape, generator=generator, dtype=like.dtype) * attack.image_std
        images = images.to(like.device).requires_grad_()
        multipliers = torch.rand(self.shape[0], generator=generator, dtype=like.dtype).to(like.device)
        norm = squared_norm(self.objective.delta)
        start = self.objective.gradient_sum(images.detach(), self.duals(images, multipliers), inverse_temperature(0, 1))
        scale = (norm / max(squared_norm(start), 1e-30)) ** 0.5
        multipliers = (multipliers * scale).requires_grad_()
        groups: list[dict[str, Any]] = [
            {"params": [images]},
            {"params": [multipliers], "lr": attack.learning_rate * scale},
        ]
        optimizer = torch.optim.Adam(groups, lr=attack.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, attack.iterations)
        trace: list[tuple[int, float]] = []
        for i in range(attack.iterations):
            beta = inverse_temperature(i, attack.iterations)
            loss = self.objective.loss(images, self.duals(images, multipliers), beta) / norm
            short = torch.relu(attack.dual_floor - multipliers / scale).square().mean()
            penalty = attack.range_penalty * outside_range(images, *self.bounds) + attack.dual_penalty * short
            images.grad, multipliers.grad = torch.autograd.grad(loss + penalty, (images, multipliers))
            optimizer.step()
            schedule.step()
            if i % TRACE_EVERY == 0:
                trace.append((i, float(loss.detach())))
                progress(i, trace[-1][1])
        progress(attack.iterations, trace[-1][1])
        images, duals = images.detach(), self.duals(images, multipliers).detach()
        sums = self.objective.gradient_sum(images, duals, None)
        rest = {name: target - sums[name] for name, target in self.objective.delta.items()}
        return _Solution(images, duals, (squared_norm(rest) / norm) ** 0.5, tuple(trace))

    def duals(self, images: Tensor, multipliers: Tensor) -> Tensor:
        """λ_j times the gradient of the margin, (1, M, K)."""
        return (multipliers[:, None] * margin_directions(self.outputs(images), self.labels))[None]


@dataclass(frozen=True)
class _Solution:
    images: Tensor
    duals: Tensor
    residual: float
    trace: tuple[tuple[int, float], ...]
