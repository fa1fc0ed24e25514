"""Reconstruction with the neural tangent kernel (Loo et al., ICLR 2024, eq. 7; appendices B, F, H, I)."""

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.interface.attack import Attack, Progress, Reconstruction, register, silent
from attacks.interface.devices import cast_state, choose_device
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.interface.options import check_values
from attacks.ntk.adam_graph import Descent
from attacks.ntk.objective import Objective, backward_in_batches, make_objective, unexplained_without
from attacks.ntk.rounds_objective import StackedObjective, round_scales
from attacks.update.intervals import kept_entries, known_distortion
from attacks.update.private_set import Belief, check_told

TRACE_EVERY = 100  # iterations between two looks at the loss: each look waits for a GPU


@register
@dataclass(frozen=True)
class NTKAttack(Attack):
    """Find images x_j and duals α_j with Δθ = Σ_j α_j ∇_θ f(x_j), in every round that was observed.

    The defaults are the paper's recipe with two additions that a federated update needs: `scale_duals` starts and steps
    the duals at the scale of Δθ (a few local epochs give duals far below the paper's ½), and the `cosine` schedule
    lets the step size fall to 0. `scale_duals=False, schedule="constant"` is the recipe as published.

    An adaptive attacker counts only the entries that were sent, where the others were left out (kept_fraction), and
    stops where the loss is down at that of the noise or rounding it knows of.

    Several pairs share the images and have duals of their own (`attacks.history`); those of the result are ordered by
    round, then initial before final.

    kernel: whose tangent space, that of the `final` or `initial` parameters, or `hybrid`, both with duals of their own.
    candidates: how many images, as a multiple of the number of private ones; num_candidates: the same as a number.
    smoothness: weight of `high_frequencies`, relative to ‖Δθ‖² (the paper's ResNet-18 has a mild penalty of this kind).
    batch_size: Algorithm 2 with so many candidates at a time. precision: float32 or float64.
    patience: stop when the mean loss of so many iterations is that of the ones before, to `tolerance` (0: never).
    restarts: independent starts; the one with the smallest residual is returned.
    """

    name: ClassVar[str] = "ntk"

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

    def __post_init__(self) -> None:
        check_values(
            self,
            ("candidates", "num_candidates", "iterations", "learning_rate", "image_std", "restarts", "batch_size"),
            not_negative=("smoothness", "range_penalty", "patience", "tolerance"),
            choices={
                "kernel": ("final", "initial", "hybrid"),
                "schedule": ("cosine", "constant"),
                "precision": ("float32", "float64"),
            },
        )

    def reconstruct(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> Reconstruction:
        """Run the attack. num_private, pixel_mean and pixel_range are used where known, else inferred or assumed."""
        start = time.perf_counter()
        self.check(observation, knowledge)
        observation = observation.moved()
        belief = Belief.of(self.name, observation, self._counted(knowledge))
        problem = self._problem(observation, belief, knowledge)

        total = self.restarts * self.iterations
        solutions = [
            problem.solve(
                generator, lambda i, loss, before=restart * self.iterations: progress(before + i, total, loss)
            )
            for restart in range(self.restarts)
        ]
        best = min(solutions, key=lambda solution: solution.residual)
        images, duals, share = best.ranked(problem.objective)
        return Reconstruction(
            images=images.float().cpu(),
            residual=share.float().cpu(),
            pixel_mean=belief.pixel_mean,
            duals=(duals / problem.dual_scales).float().cpu(),
            num_inferred=belief.num_inferred,
            relative_residual=best.residual,
            loss_trace=best.trace,
            warnings=belief.warnings,
            seconds=time.perf_counter() - start,
        )

    def check(self, observation: Observation, knowledge: Knowledge) -> None:
        check_told(self.name, observation, self._counted(knowledge))

    def _counted(self, knowledge: Knowledge) -> Knowledge:
        """Whoever says how many candidates need not know how many images there are."""
        return replace(knowledge, num_private=knowledge.num_private or self.num_candidates)

    def _problem(self, observation: Observation, belief: Belief, knowledge: Knowledge) -> "_Problem":
        count = self.num_candidates or max(1, round(self.candidates * belief.num_private))
        device, dtype = choose_device(self.device), getattr(torch, self.precision)
        prepare = partial(cast_state, device=device, dtype=dtype)
        deltas = [observation.delta(pair) for pair in range(len(observation.pairs))]
        scales = round_scales(deltas)
        model = observation.model.to(device).eval()
        rounds, dual_scales, floor = [], [], 0.0
        for pair, delta, scale in zip(observation.pairs, deltas, scales, strict=True):
            scaled = prepare({name: value * scale for name, value in delta.items()})
            views = [prepare(state) for state in self._views(*pair)]
            kept = kept_entries(delta, knowledge)
            kept = kept if kept is None else prepare(kept)
            rounds.append(make_objective(model, observation.input_shape, scaled, views, kept=kept))
            floor += scale**2 * known_distortion(delta, knowledge)
            dual_scales += [scale] * len(views)
        objective = rounds[0] if len(rounds) == 1 else StackedObjective(rounds)
        with torch.no_grad():
            probe = torch.zeros((1, *observation.input_shape), device=device, dtype=dtype)
            outputs = torch.func.functional_call(model, prepare(observation.final), (probe,)).reshape(1, -1).shape[1]
        low, high = belief.bounds(knowledge, probe)
        factors = torch.tensor(dual_scales, device=device, dtype=dtype).view(-1, 1, 1)
        return _Problem(
            self, objective, (count, *observation.input_shape), outputs, factors, low, high, device, dtype, floor
        )

    def _views(self, initial: State, final: State) -> list[State]:
        return {"final": [final], "initial": [initial], "hybrid": [initial, final]}[self.kernel]


def inverse_temperature(iteration: int, iterations: int) -> float:
    """β of the softplus that stands for ReLU: min(10 + 10^(4i/T), 200), 11 at the start (app. H.3, rescaled to T)."""
    return min(10.0 + 10.0 ** (4.0 * iteration / iterations), 200.0)


def outside_range(images: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """M · mean(relu(x − max)² + relu(min − x)²), the penalty of app. H.3 without its factor 0.1."""
    return len(images) * (torch.relu(images - high) ** 2 + torch.relu(low - images) ** 2).mean()


def high_frequencies(images: Tensor) -> Tensor:
    """M · mean((x − b∗x)²), b the binomial blur [1 2 1]ᵀ[1 2 1] / 16 of every channel, edges repeated. (M, C, H, W).

    At frequencies (u, v), in radians per pixel, the weight is (1 − cos²(u/2) cos²(v/2))²: none at 0, 1 at the highest.
    """
    line = images.new_tensor([0.25, 0.5, 0.25])
    channels = images.shape[1]
    kernel = (line[:, None] * line).expand(channels, 1, 3, 3)
    blurred = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), kernel, groups=channels)
    return len(images) * ((images - blurred) ** 2).mean()


def squared_norm(state: State) -> float:
    """‖·‖² over all tensors of a state dict, summed in float64."""
    return sum(float((value.double() ** 2).sum()) for value in state.values())


@dataclass(frozen=True)
class _Problem:
    """One optimization, ready to be started from any random numbers.

    dual_scales: (V, 1, 1), what the update of each kernel's round was multiplied by. floor: the loss that the right
    images leave, where noise of known size was added; below it the noise is fitted.
    """

    attack: NTKAttack
    objective: Objective
    shape: tuple[int, int, int, int]
    outputs: int
    dual_scales: Tensor
    low: Tensor
    high: Tensor
    device: torch.device
    dtype: torch.dtype
    floor: float = 0.0

    @cached_property
    def squared_delta(self) -> float:
        return squared_norm(self.objective.delta)

    def solve(self, generator: torch.Generator, progress) -> "_Solution":
        attack, objective = self.attack, self.objective
        images, duals = self._start(generator)
        scale = self._scale(images, duals) if attack.scale_duals else 1.0
        duals = duals.mul(scale).requires_grad_()
        rate, total = attack.learning_rate, attack.iterations
        descent = Descent(lambda beta: self._backward(images, duals, beta), [images, duals], [rate, rate * scale])
        squared_delta = self.squared_delta
        trace: list[tuple[int, float]] = []
        previous: float | None = None
        for i in range(total):
            decay = 0.5 + 0.5 * math.cos(math.pi * i / total) if attack.schedule == "cosine" else 1.0
            descent.step(inverse_temperature(i, total), decay)
            if i % TRACE_EVERY == 0:
                trace.append((i, float(descent.loss) / squared_delta))
                progress(i, trace[-1][1])
                if self.floor and trace[-1][1] * squared_delta < self.floor:
                    break
            if attack.patience and (i + 1) % attack.patience == 0:
                mean = float(descent.total) / attack.patience
                descent.total.zero_()
                if previous is not None and abs(previous - mean) <= attack.tolerance * previous:
                    break
                previous = mean
        progress(total, trace[-1][1])
        images, duals = images.detach(), duals.detach()
        sums = objective.gradient_sum(images, duals, None)
        rest = {name: delta - sums[name] for name, delta in objective.delta.items()}
        return _Solution(images, duals, (squared_norm(rest) / squared_delta) ** 0.5, tuple(trace))

    def _start(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images N(0, image_std²) and duals U(−½, ½), drawn on the CPU so that every device starts alike."""
        images = torch.randn(self.shape, generator=generator, dtype=self.dtype) * self.attack.image_std
        duals = (
            torch.rand((len(self.dual_scales), self.shape[0], self.outputs), generator=generator, dtype=self.dtype)
            - 0.5
        )
        return images.to(self.device).requires_grad_(), duals.to(self.device)

    def _scale(self, images: Tensor, duals: Tensor) -> float:
        """The factor on the duals at which the starting point's gradient sum is as long as Δθ."""
        sums = self.objective.gradient_sum(images.detach(), duals, inverse_temperature(0, 1))
        return (squared_norm(self.objective.delta) / max(squared_norm(sums), 1e-30)) ** 0.5

    def _backward(self, images: Tensor, duals: Tensor, beta: Tensor) -> Tensor:
        """Add up the gradients; returns the reconstruction loss without its penalty, not waiting for the device."""
        penalty = self.attack.range_penalty * outside_range(images, self.low, self.high)
        if self.attack.smoothness:
            penalty = penalty + self.attack.smoothness * self.squared_delta * high_frequencies(images)
        batch = self.attack.batch_size
        if batch is not None:
            penalty.backward(inputs=[images])
            return backward_in_batches(self.objective, images, duals, beta, batch)
        loss = self.objective.loss(images, duals, beta)
        (loss + penalty).backward(inputs=[images, duals])
        return loss.detach()


@dataclass(frozen=True)
class _Solution:
    images: Tensor
    duals: Tensor
    residual: float
    trace: tuple[tuple[int, float], ...]

    def ranked(self, objective: Objective) -> tuple[Tensor, Tensor, Tensor]:
        """(images, duals, residual), best first; the residual is that of `unexplained_without`."""
        share = unexplained_without(objective, self.images, self.duals)
        order = share.argsort(stable=True)
        return self.images[order], self.duals[:, order], share[order]
