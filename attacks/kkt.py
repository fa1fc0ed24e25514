"""Reconstruction from trained parameters alone (Haim et al. 2022; several classes: Buzaglo et al. 2023).

A homogeneous network that gradient flow trained to fit its data, under cross-entropy, converges in direction to a KKT
point of margin maximization, where θ = Σ_i λ_i y_i ∇f(θ; x_i) with λ ≥ 0. Candidates are moved until θ_f is such a sum.
This asks for less than the other attacks: no θ₀. It also finds less: few clients train that long, and θ_f still
contains θ₀ (Loo et al. 2024, appendix A).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Attack, Progress, Reconstruction, ReportLoss, best_of_restarts, register
from attacks.interface.knowledge import Knowledge, count_candidates
from attacks.interface.observation import Observation
from attacks.interface.options import NOT_NEGATIVE, POSITIVE
from attacks.interface.torch_tools import cast_state, choose_device, descend
from attacks.networks.probing import count_outputs, outputs_at
from attacks.ntk.objective import (
    TRACE_EVERY,
    DualSolution,
    Objective,
    check_objective,
    inverse_temperature,
    make_objective,
    outside_range,
    relative_residual_without,
    squared_norm,
)


@register
@dataclass(frozen=True)
class KKTAttack(Attack):
    """Search for images that alone explain the final network, where training went on until nothing changed.

    Sought are images x_j and multipliers λ_j ≥ 0 with θ_f = Σ_j λ_j y_j ∇f(θ_f; x_j).

    With several outputs y_j f is the margin f_y − max_k≠y f_k.

    candidates: how many, as a multiple of the number of private images. Their labels are those told, in turn, or all
        classes alike.
    iterations: steps of Adam.
    learning_rate: of the images, and of the multipliers at their scale.
    image_std: standard deviation of the images at the start.
    dual_floor: share of the scale at which λ starts, below which it is penalized (Haim et al.: candidates with λ = 0
        are of no use).
    dual_penalty: weight of that penalty.
    range_penalty: weight of pixels out of range.
    restarts: independent starts, of which the one with the smallest residual is returned.
    precision: of all numbers.
    device: auto, cpu or cuda.
    """

    name: ClassVar[str] = "kkt"
    infers: ClassVar[tuple[str, ...]] = ("num_private", "pixel_mean")

    candidates: Annotated[float, POSITIVE] = 2.0
    iterations: Annotated[int, POSITIVE] = 10_000
    learning_rate: Annotated[float, POSITIVE] = 0.02
    image_std: Annotated[float, POSITIVE] = 0.2
    dual_floor: Annotated[float, NOT_NEGATIVE] = 0.05
    dual_penalty: Annotated[float, NOT_NEGATIVE] = 1.0
    range_penalty: Annotated[float, NOT_NEGATIVE] = 0.1
    restarts: Annotated[int, POSITIVE] = 1
    precision: Literal["float32", "float64"] = "float32"
    device: str = "auto"

    def check_requirements(self, observation: Observation, knowledge: Knowledge) -> None:
        count_candidates(self.name, observation.input_shape, knowledge, self.candidates)
        check_objective(self.name, observation)

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """Use labels and pixel_range where they are known; of the initial checkpoint the number of images and the mean.
        residual of a candidate: ‖R‖ / ‖R + g_j‖, as in the NTK attack; duals: λ_j y_j."""
        problem = self.optimization(observation, knowledge)
        best = best_of_restarts(self.restarts, self.iterations, partial(problem.solve, generator), progress)
        rounds = len(observation.pairs)
        return Reconstruction(
            best.images,
            relative_residual_without(problem.objective, best.images, best.duals),
            duals=best.duals,
            relative_residual=best.residual,
            loss_trace=best.trace,
            warnings=(f"only the last of {rounds} returned checkpoints is used",) if rounds > 1 else (),
        )

    def optimization(self, observation: Observation, knowledge: Knowledge) -> "KKTOptimization":
        """Return the optimization that these checkpoints define. knowledge: with num_private and pixel_mean."""
        device, dtype = choose_device(self.device), getattr(torch, self.precision)
        final, model = cast_state(observation.final, device, dtype), observation.model
        target = {name: final[name] for name in observation.trainable}
        count = count_candidates(self.name, observation.input_shape, knowledge, self.candidates)
        classes = max(2, count_outputs(model, observation.input_shape))
        known = torch.tensor(knowledge.labels if knowledge.labels is not None else range(classes))
        return KKTOptimization(
            options=self,
            objective=make_objective(model, observation.input_shape, target, [final]),
            outputs=partial(outputs_at, model, final),
            labels=known.repeat(math.ceil(count / len(known)))[:count].to(device),
            shape=(count, *observation.input_shape),
            bounds=knowledge.input_bounds(torch.zeros((), device=device, dtype=dtype)),
        )


def margin_directions(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient (M, K) of every candidate's margin in its outputs, e_y − e_k; with one output ±1."""
    if outputs.shape[1] == 1:
        return (2 * labels - 1).to(outputs.dtype)[:, None]
    rivals = outputs.scatter(1, labels[:, None], -torch.inf).argmax(1)
    directions = torch.zeros_like(outputs).scatter(1, labels[:, None], 1.0)
    return directions.scatter(1, rivals[:, None], -1.0)


@dataclass(frozen=True)
class KKTOptimization:
    """One optimization, ready to be started from any random numbers.

    outputs: the network's, (M, K), of images (M, C, H, W).
    labels: (M,), of the candidates.
    shape: theirs.
    bounds: lowest and highest input.
    """

    options: KKTAttack
    objective: Objective
    outputs: Callable[[Tensor], Tensor]
    labels: Tensor
    shape: tuple[int, int, int, int]
    bounds: tuple[Tensor, Tensor]

    def solve(self, generator: torch.Generator, report: ReportLoss) -> DualSolution:
        options, norm = self.options, squared_norm(self.objective.delta)
        images, multipliers, scale = self._start(generator, norm)
        trace: list[tuple[int, float]] = []

        def gradients(i: int) -> tuple[Tensor, ...]:
            beta = inverse_temperature(i, options.iterations)
            loss = self.objective.loss(images, self.duals(images, multipliers), beta) / norm
            short = torch.relu(options.dual_floor - multipliers / scale).square().mean()
            penalty = options.range_penalty * outside_range(images, *self.bounds) + options.dual_penalty * short
            found = torch.autograd.grad(loss + penalty, (images, multipliers))
            if i % TRACE_EVERY == 0:
                trace.append((i, float(loss.detach())))
                report(i, trace[-1][1])
            return found

        variables = [(images, options.learning_rate), (multipliers, options.learning_rate * scale)]
        descend(gradients, variables, options.iterations)
        report(options.iterations, trace[-1][1])
        return DualSolution.of(self.objective, images, self.duals(images, multipliers), trace)

    def _start(self, generator: torch.Generator, norm: float) -> tuple[Tensor, Tensor, float]:
        """Return (images, multipliers, what scales their gradient sum to the target's length), drawn on the CPU."""
        like = self.bounds[0]
        images = torch.randn(self.shape, generator=generator, dtype=like.dtype) * self.options.image_std
        images = images.to(like.device).requires_grad_()
        multipliers = torch.rand(self.shape[0], generator=generator, dtype=like.dtype).to(like.device)
        start = self.objective.gradient_sum(images.detach(), self.duals(images, multipliers), inverse_temperature(0, 1))
        scale = (norm / max(squared_norm(start), 1e-30)) ** 0.5
        return images, (multipliers * scale).requires_grad_(), scale

    def duals(self, images: Tensor, multipliers: Tensor) -> Tensor:
        """Return λ_j times the gradient of the margin, (1, M, K)."""
        return (multipliers[:, None] * margin_directions(self.outputs(images), self.labels))[None]
