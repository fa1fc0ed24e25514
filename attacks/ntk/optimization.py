"""The optimization of the NTK attack: Adam on images and duals, on a smoothed network whose smoothing is annealed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from attacks.interface.restarts import ReportLoss
from attacks.ntk.adam_graph import Descent
from attacks.ntk.objective import Objective, backward_in_batches, relative_residual, squared_norm
from attacks.ntk.penalties import high_frequencies, inverse_temperature, outside_range

TRACE_EVERY = 100  # iterations between two looks at the loss: each look waits for a GPU


@dataclass(frozen=True)
class NTKOptions:
    """The options of the attack; `attacks.ntk.attack.NTKAttack` says what they are."""

    kernel: Literal["final", "initial", "hybrid"] = "final"
    candidates: float = 2.0
    num_candidates: int | None = None
    iterations: int = 80_000
    learning_rate: float = 0.02
    image_std: float = 0.2
    range_penalty: float = 0.1
    smoothness: float = 0.0
    batch_size: int | None = None
    restarts: int = 1
    patience: int = 2_000
    tolerance: float = 1e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    scale_duals: bool = True
    precision: Literal["float32", "float64"] = "float32"
    device: str = "auto"


@dataclass(frozen=True)
class DualSolution:
    """images: (M, C, H, W). duals: (V, M, K). residual: ‖Δθ − Σ‖ / ‖Δθ‖. trace: (iteration, relative loss) pairs."""

    images: Tensor
    duals: Tensor
    residual: float
    trace: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, objective: Objective, images: Tensor, duals: Tensor, trace: list[tuple[int, float]]) -> "DualSolution":
        """Where an optimization ended, judged without the softplus."""
        images, duals = images.detach(), duals.detach()
        return cls(images, duals, relative_residual(objective, images, duals), tuple(trace))


@dataclass(frozen=True)
class NTKOptimization:
    """One optimization, ready to be started from any random numbers.

    shape: of the candidates. outputs: K. dual_scales: (V, 1, 1), what the update of each kernel's round was multiplied
    by. bounds: lowest and highest input. noise_floor: the loss that the right images leave, where noise of known size
    was added to the update; below it the noise is fitted.
    """

    options: NTKOptions
    objective: Objective
    shape: tuple[int, int, int, int]
    outputs: int
    dual_scales: Tensor
    bounds: tuple[Tensor, Tensor]
    noise_floor: float = 0.0

    @cached_property
    def squared_delta(self) -> float:
        return squared_norm(self.objective.delta)

    def solve(self, generator: torch.Generator, report: ReportLoss) -> DualSolution:
        images, duals = self._start(generator)
        scale = self._scale(images, duals) if self.options.scale_duals else 1.0
        duals = duals.mul(scale).requires_grad_()
        rates = (self.options.learning_rate, self.options.learning_rate * scale)
        descent = Descent(lambda beta: self._backward(images, duals, beta), [images, duals], rates)
        trace: list[tuple[int, float]] = []
        for i, loss in self._descend(descent):
            trace.append((i, loss / self.squared_delta))
            report(i, trace[-1][1])
        report(self.options.iterations, trace[-1][1])
        return DualSolution.of(self.objective, images, duals, trace)

    def _descend(self, descent: Descent) -> Iterator[tuple[int, float]]:
        """Every iteration, with the loss at those that are looked at; ends early at the noise or on a plateau."""
        options, total = self.options, self.options.iterations
        previous: float | None = None
        for i in range(total):
            decay = 0.5 + 0.5 * math.cos(math.pi * i / total) if options.schedule == "cosine" else 1.0
            descent.step(inverse_temperature(i, total), decay)
            if i % TRACE_EVERY == 0:
                loss = float(descent.loss)
                yield i, loss
                if self.noise_floor and loss < self.noise_floor:
                    return
            if options.patience and (i + 1) % options.patience == 0:
                mean = float(descent.total) / options.patience
                descent.total.zero_()
                if previous is not None and abs(previous - mean) <= options.tolerance * previous:
                    return
                previous = mean

    def _start(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images N(0, image_std²) and duals U(−½, ½), drawn on the CPU so that every device starts alike."""
        like, count = self.bounds[0], len(self.dual_scales)
        images = torch.randn(self.shape, generator=generator, dtype=like.dtype) * self.options.image_std
        duals = torch.rand((count, self.shape[0], self.outputs), generator=generator, dtype=like.dtype) - 0.5
        return images.to(like.device).requires_grad_(), duals.to(like.device)

    def _scale(self, images: Tensor, duals: Tensor) -> float:
        """The factor on the duals at which the starting point's gradient sum is as long as Δθ."""
        sums = self.objective.gradient_sum(images.detach(), duals, inverse_temperature(0, 1))
        return (self.squared_delta / max(squared_norm(sums), 1e-30)) ** 0.5

    def _backward(self, images: Tensor, duals: Tensor, beta: Tensor) -> Tensor:
        """Add up the gradients; returns the reconstruction loss without its penalty, not waiting for the device."""
        options = self.options
        penalty = options.range_penalty * outside_range(images, *self.bounds)
        if options.smoothness:
            penalty = penalty + options.smoothness * self.squared_delta * high_frequencies(images)
        if options.batch_size is not None:
            penalty.backward(inputs=[images])
            return backward_in_batches(self.objective, images, duals, beta, options.batch_size)
        loss = self.objective.loss(images, duals, beta)
        (loss + penalty).backward(inputs=[images, duals])
        return loss.detach()
