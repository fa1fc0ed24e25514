"""Reconstruction with the neural tangent kernel (Loo et al., ICLR 2024, eq. 7; appendices B, F, H, I).

Adam on images and duals, on a smoothed network whose smoothing is annealed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Attack, Progress, Reconstruction, ReportLoss, best_of_restarts, register
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge, count_candidates
from attacks.interface.observation import Observation, State
from attacks.interface.options import NOT_NEGATIVE, POSITIVE
from attacks.interface.torch_tools import cast_state, choose_device, constant, half_cosine
from attacks.networks.probing import count_outputs
from attacks.ntk.adam_graph import GraphedAdam
from attacks.ntk.objective import (
    ANNEALED,
    TRACE_EVERY,
    DualSolution,
    Objective,
    StackedObjective,
    backward_in_batches,
    gradient_sum_in_batches,
    high_frequencies,
    inverse_temperature,
    make_objective,
    outside_range,
    relative_residual_without,
    round_scales,
    squared_norm,
)
from attacks.update.intervals import kept_entries

# length of the starting point's gradient sum, relative to Δθ: its duals have random signs and cancel each other
DUAL_START = 0.25


@register
@dataclass(frozen=True)
class NTKAttack(Attack):
    """Search for images that would have changed the network as the update did, in every round observed.

    Sought are images x_j and duals α_j with Δθ = Σ_j α_j ∇_θ f(x_j).

    The defaults are the best recipe that was measured at equal processor time (docs/records/ntk_recipes.md). From the
    paper's they differ in the kernel, `hybrid`; in `scale_duals`, which starts and steps the duals at the scale of Δθ
    and brings Δθ to length 1, so that an update and a multiple of it are attacked alike; and in a step size that falls
    from 0.05 to 0 along a `cosine`. The recipe as published is `kernel="final", iterations=80_000, learning_rate=0.02,
    dual_normalization="mean", scale_duals=False, schedule="constant", patience=0`.

    An adaptive attacker counts only the entries that were sent, where others were left out at random (kept_fraction).
    What else it knows it does not use: where only the largest entries were sent the others are nearly 0, as they look,
    and at the loss of known noise the network is still smoothed.

    Several pairs share the images and have duals of their own (`StackedObjective`); those of the result are
    ordered by round, then from initial to final.

    kernel: whose tangent space, that of the `final` or `initial` parameters; `hybrid`, both with duals of their own, at
        twice the cost of one; or `path`, these two and the middle between them, (θ₀ + θ_f)/2, at three times.
    candidates: how many images, as a multiple of the number of private ones.
    num_candidates: how many images, as a number.
    iterations: steps of Adam. The default, of minutes, finds more of 20 images than the published 80,000 steps do;
        20,000 find twice as many of 200 (docs/records/headline.md).
    learning_rate: of Adam, for images, and for duals at their scale.
    image_std: standard deviation of the images at the start.
    range_penalty: weight of pixels out of range.
    smoothness: weight of `high_frequencies`, relative to ‖Δθ‖² (the paper's ResNet-18 has a mild penalty of this kind).
    batch_size: of Algorithm 2, so many candidates at a time; by default all.
    restarts: independent starts, of which the one with the smallest residual is returned.
    patience: once the smoothing has been annealed, stop when the mean loss of so many iterations is that of the ones
        before (0: never).
    tolerance: relative difference up to which two mean losses are the same.
    schedule: of the step size, along a half cosine to 0 or constant.
    scale_duals: start and step the duals at the scale of Δθ.
    dual_normalization: what Adam moves where `scale_duals` is off, the duals of the `sum` Σ_j α_j ∇f(x_j), or M·K times
        them, so that it is the `mean` over M candidates and K outputs that is differentiated, as in the authors' code:
        effective duals start and step M·K times smaller. Those of the result are α of the sum in any case.
    precision: of all numbers.
    device: auto, cpu or cuda.
    """

    name: ClassVar[str] = "ntk"
    infers: ClassVar[tuple[str, ...]] = ("num_private", "pixel_mean")

    kernel: Literal["final", "initial", "hybrid", "path"] = "hybrid"
    candidates: Annotated[float, POSITIVE] = 2.0
    num_candidates: Annotated[int | None, POSITIVE] = None
    iterations: Annotated[int, POSITIVE] = 4_000
    learning_rate: Annotated[float, POSITIVE] = 0.05
    image_std: Annotated[float, POSITIVE] = 0.2
    range_penalty: Annotated[float, NOT_NEGATIVE] = 0.1
    smoothness: Annotated[float, NOT_NEGATIVE] = 0.0
    batch_size: Annotated[int | None, POSITIVE] = None
    restarts: Annotated[int, POSITIVE] = 1
    patience: Annotated[int, NOT_NEGATIVE] = 2_000
    tolerance: Annotated[float, NOT_NEGATIVE] = 1e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    scale_duals: bool = True
    dual_normalization: Literal["sum", "mean"] = "sum"
    precision: Literal["float32", "float64"] = "float32"
    device: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_duals and self.dual_normalization == "mean":
            raise InputError(
                f"attack {self.name!r}: dual_normalization 'mean' says nothing where the update scales the duals: "
                "set scale_duals to false"
            )

    def check_requirements(self, observation: Observation, knowledge: Knowledge) -> None:
        count_candidates(self.name, observation.input_shape, knowledge, self.candidates, self.num_candidates)

    def with_options(self, knowledge: Knowledge) -> Knowledge:
        """Take the number of candidates, where it is given, for that of images, where it is not."""
        return replace(knowledge, num_private=knowledge.num_private or self.num_candidates)

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """Use pixel_range where it is known. residual of a candidate: ‖R‖ / ‖R + g_j‖, with R left by all of them."""
        problem = self._optimization(observation.without_zero_updates(), knowledge)
        best = best_of_restarts(self.restarts, self.iterations, partial(problem.solve, generator), progress)
        return Reconstruction(
            best.images,
            relative_residual_without(problem.objective, best.images, best.duals, self.batch_size),
            duals=best.duals / problem.dual_scales,
            relative_residual=best.residual,
            loss_trace=best.trace,
        )

    def _optimization(self, observation: Observation, knowledge: Knowledge) -> "NTKOptimization":
        device, dtype, shape = choose_device(self.device), getattr(torch, self.precision), observation.input_shape
        prepare = partial(cast_state, device=device, dtype=dtype)
        deltas = [observation.delta(pair) for pair in range(len(observation.pairs))]
        scales = round_scales(deltas, unit_length=self.scale_duals)
        rounds, dual_scales = [], []
        for (initial, final), delta, scale in zip(observation.pairs, deltas, scales, strict=True):
            scaled = prepare({name: value * scale for name, value in delta.items()})
            views = tangent_points(self.kernel, prepare(initial), prepare(final))
            kept = kept_entries(delta, knowledge)
            kept = kept if kept is None else prepare(kept)
            rounds.append(make_objective(observation.model, shape, scaled, views, kept=kept))
            dual_scales += [scale] * len(views)
        return NTKOptimization(
            options=self,
            objective=rounds[0] if len(rounds) == 1 else StackedObjective(rounds),
            shape=(count_candidates(self.name, shape, knowledge, self.candidates, self.num_candidates), *shape),
            outputs=count_outputs(observation.model, shape),
            dual_scales=torch.tensor(dual_scales, device=device, dtype=dtype).view(-1, 1, 1),
            bounds=knowledge.input_bounds(torch.zeros((), device=device, dtype=dtype)),
        )


def tangent_points(kernel: str, initial: State, final: State) -> list[State]:
    """Return the parameters whose gradients the update is explained by, in the duals' order, by `NTKAttack.kernel`."""
    if kernel != "path":
        return {"final": [final], "initial": [initial], "hybrid": [initial, final]}[kernel]
    middle = {k: (v + final[k]) / 2 if v.is_floating_point() else v for k, v in initial.items()}
    return [initial, middle, final]


@dataclass(frozen=True)
class NTKOptimization:
    """One optimization, ready to be started from any random numbers.

    shape: of the candidates.
    outputs: K.
    dual_scales: (V, 1, 1), what the update of each kernel's round was multiplied by.
    bounds: lowest and highest input.
    """

    options: NTKAttack
    objective: Objective
    shape: tuple[int, int, int, int]
    outputs: int
    dual_scales: Tensor
    bounds: tuple[Tensor, Tensor]

    @cached_property
    def squared_delta(self) -> float:
        return squared_norm(self.objective.delta)

    def solve(self, generator: torch.Generator, report: ReportLoss) -> DualSolution:
        images, duals = self._start(generator)
        scale = self._scale(images, duals)
        duals = duals.mul(scale).requires_grad_()
        rates = (self.options.learning_rate, self.options.learning_rate * scale)
        descent = GraphedAdam(lambda beta: self._backward(images, duals, beta), [images, duals], rates)
        trace: list[tuple[int, float]] = []
        for i, loss in self._descend(descent):
            trace.append((i, loss / self.squared_delta))
            report(i, trace[-1][1])
        report(self.options.iterations, trace[-1][1])
        return DualSolution.of(self.objective, images, duals, trace, self.options.batch_size)

    def _descend(self, descent: GraphedAdam) -> Iterator[tuple[int, float]]:
        """Yield every iteration, with the loss at those that are looked at; ends early on a plateau."""
        options, total = self.options, self.options.iterations
        previous: float | None = None
        schedule = half_cosine if options.schedule == "cosine" else constant
        for i, decay in enumerate(schedule(1.0, total)):
            descent.step(inverse_temperature(i, total), decay)
            if i % TRACE_EVERY == 0:
                loss = float(descent.loss)
                yield i, loss
            if options.patience and (i + 1) % options.patience == 0:
                mean = float(descent.total) / options.patience
                descent.total.zero_()
                if previous is not None and abs(previous - mean) <= options.tolerance * previous:
                    return
                # while the network still changes, a loss that stands still is no end
                previous = mean if inverse_temperature(i, total) >= ANNEALED else None

    def _start(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw images N(0, image_std²) and duals U(−½, ½), on the CPU so that every device starts alike."""
        like, count = self.bounds[0], len(self.dual_scales)
        images = torch.randn(self.shape, generator=generator, dtype=like.dtype) * self.options.image_std
        duals = torch.rand((count, self.shape[0], self.outputs), generator=generator, dtype=like.dtype) - 0.5
        return images.to(like.device).requires_grad_(), duals.to(like.device)

    def _scale(self, images: Tensor, duals: Tensor) -> float:
        """Return the factor on the duals, as drawn and as stepped: with `scale_duals` the one at which the starting
        point's gradient sum is `DUAL_START` times as long as Δθ, else that of the normalization."""
        if not self.options.scale_duals:
            return 1 / (len(images) * self.outputs) if self.options.dual_normalization == "mean" else 1.0
        start, beta = images.detach(), inverse_temperature(0, 1)
        sums = gradient_sum_in_batches(self.objective, start, duals, beta, self.options.batch_size)
        return DUAL_START * (self.squared_delta / max(squared_norm(sums), 1e-30)) ** 0.5

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
