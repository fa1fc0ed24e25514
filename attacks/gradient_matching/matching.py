"""The optimization behind gradient matching: images, and soft labels, whose simulated update is the observed one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attacks.gradient_matching.batch_order import Batches
from attacks.gradient_matching.local_training import LocalTraining
from attacks.interface.observation import State
from attacks.interface.restarts import ReportLoss

TRACE_EVERY = 20  # iterations between two looks at the loss: each look waits for a GPU
DECAYS = (3 / 8, 5 / 8, 7 / 8)  # of the iterations: there the step size falls to a tenth (the code of Geiping et al.)


def update_distance(kind: Literal["cosine", "euclidean"], simulated: State, observed: State) -> Tensor:
    """cosine: 1 − ⟨Δ̂, Δ⟩ / (‖Δ̂‖ ‖Δ‖) over all parameters (Geiping et al. 2020). euclidean: ‖Δ̂ − Δ‖² / ‖Δ‖²,
    which in units of ‖Δ‖² is the distance of gradients of Zhu et al. (2019). A scalar."""
    squared = sum_over(observed, lambda name: observed[name] ** 2)
    if kind == "euclidean":
        return sum_over(observed, lambda name: (simulated[name] - observed[name]) ** 2) / squared
    lengths = sum_over(observed, lambda name: simulated[name] ** 2) * squared
    aligned = sum_over(observed, lambda name: simulated[name] * observed[name])
    return 1 - aligned / lengths.clamp_min(torch.finfo(lengths.dtype).tiny).sqrt()


def sum_over(state: State, term: Callable[[str], Tensor]) -> Tensor:
    """Σ of the entries of `term(name)` over the names of `state`."""
    return torch.stack([term(name).sum() for name in state]).sum()


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of vertical and of horizontal neighbours, added; images (M, C, H, W)."""
    vertical = (images[:, :, 1:] - images[:, :, :-1]).abs()
    horizontal = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs()
    return sum((part.mean() for part in (vertical, horizontal) if part.numel()), images.new_zeros(()))


@dataclass(frozen=True)
class MatchingOptions:
    """The options of the attack that its optimization reads; `GradientMatchingAttack` says what they are."""

    distance: Literal["cosine", "euclidean"] = "cosine"
    optimizer: Literal["adam", "lbfgs"] = "adam"
    signed: bool = True
    iterations: int = 4800
    learning_rate: float = 0.1
    total_variation: float = 1e-4
    image_std: float = 0.2


@dataclass(frozen=True)
class MatchingSolution:
    """images: (M, C, H, W). classes: (M, K) probabilities. residual: the distance that is left, as of
    `update_distance`. trace: (iteration, loss) pairs."""

    images: Tensor
    classes: Tensor
    residual: float
    trace: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class UpdateMatching:
    """One optimization, ready to be started from any random numbers.

    classes: (M, K) probabilities, or None where they are optimized too. batches: draws the batches of an iteration.
    shape: of the candidates. outputs: K. bounds: lowest and highest input, None where nothing is clamped.
    """

    training: LocalTraining
    observed: State
    classes: Tensor | None
    batches: Callable[[], Batches]
    shape: tuple[int, int, int, int]
    outputs: int
    bounds: tuple[Tensor, Tensor] | None
    options: MatchingOptions

    def objective(self, images: Tensor, classes: Tensor) -> Tensor:
        """The distance with the penalty, a scalar, differentiable in both."""
        distance = self.distance(images, classes)
        weight = self.options.total_variation
        return distance + weight * total_variation(images) if weight else distance

    def distance(self, images: Tensor, classes: Tensor) -> Tensor:
        return update_distance(self.options.distance, self.simulated(images, classes), self.observed)

    def simulated(self, images: Tensor, classes: Tensor) -> State:
        return self.training.update(images, classes, self.batches())

    def solve(self, generator: torch.Generator, report: ReportLoss) -> MatchingSolution:
        """Optimize from a random start, drawn on the CPU so that every device starts alike."""
        options, like = self.options, next(iter(self.observed.values()))
        images = torch.randn(self.shape, generator=generator, dtype=like.dtype) * options.image_std
        images = images.to(like.device).requires_grad_()
        logits = torch.randn((self.shape[0], self.outputs), generator=generator, dtype=like.dtype)
        logits = logits.to(like.device).requires_grad_(self.classes is None)
        variables = [images] if self.classes is not None else [images, logits]
        optimizer, schedule = self._optimizer(variables)
        trace: list[tuple[int, float]] = []

        def closure() -> Any:  # torch wants a float, which would wait for the device
            optimizer.zero_grad(set_to_none=True)
            loss = self.objective(images, self._classes(logits))
            gradients = torch.autograd.grad(loss, variables)
            for variable, gradient in zip(variables, gradients, strict=True):
                sign = options.signed and options.optimizer == "adam"
                variable.grad = gradient.sign() if sign else gradient
            return loss.detach()

        for i in range(options.iterations):
            loss = optimizer.step(closure)
            schedule.step()
            if self.bounds is not None:
                with torch.no_grad():
                    torch.clamp_(images, *self.bounds)
            if i % TRACE_EVERY == 0:
                trace.append((i, float(loss)))
                report(i, trace[-1][1])
        report(options.iterations, trace[-1][1])
        images, classes = images.detach(), self._classes(logits).detach()
        return MatchingSolution(images, classes, float(self.distance(images, classes).detach()), tuple(trace))

    def relative_distance_without(self, found: MatchingSolution) -> Tensor:
        """(M,): the distance with all candidates over that with one image replaced by the mean input, 0."""
        ratios = []
        for j in range(len(found.images)):
            without = found.images.clone()
            without[j] = 0
            distance = float(self.distance(without, found.classes).detach())
            ratios.append(found.residual / max(distance, 1e-30))
        return torch.tensor(ratios)

    def relative_residual(self, found: MatchingSolution) -> float:
        """‖Δ̂ − Δ‖ / ‖Δ‖."""
        simulated = {name: value.detach() for name, value in self.simulated(found.images, found.classes).items()}
        return float(update_distance("euclidean", simulated, self.observed)) ** 0.5

    def _classes(self, logits: Tensor) -> Tensor:
        if self.classes is not None:
            return self.classes
        return logits.sigmoid() if self.outputs == 1 else logits.softmax(1)

    def _optimizer(self, variables: list[Tensor]) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        options = self.options
        if options.optimizer == "lbfgs":
            lbfgs = torch.optim.LBFGS(variables, lr=options.learning_rate)
            return lbfgs, torch.optim.lr_scheduler.ConstantLR(lbfgs, 1.0)
        adam = torch.optim.Adam(variables, lr=options.learning_rate)
        milestones = [int(options.iterations * share) for share in DECAYS]
        return adam, torch.optim.lr_scheduler.MultiStepLR(adam, milestones)
