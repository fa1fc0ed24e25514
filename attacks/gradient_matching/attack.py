"""Gradient matching, on one gradient or on local training (Zhu et al. 2019; Geiping et al. 2020; Dimitrov et al. 2022).

The client's steps are simulated from candidate images and labels, and both are moved until the simulated update is the
observed one. One step on all images is the published attack on a gradient. The defaults are Geiping et al.'s Inverting
Gradients; Zhu et al.'s Deep Leakage from Gradients is `distance: euclidean, labels: soft, optimizer: lbfgs,
learning_rate: 1, iterations: 300, total_variation: 0, clamp: false, image_std: 1`, Fan et al.'s FedLeak
`variant: fedleak`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from attacks.base import Attack, Progress, Reconstruction, ReportLoss, Solution, best_of_restarts, register
from attacks.gradient_matching.simulation import (
    Batches,
    Order,
    SimulatedSteps,
    blended,
    check_labels,
    largest_entries,
    masked,
    nearest_possible,
    told_or_inferred_classes,
    total_variation,
    update_distance,
)
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge, count_candidates
from attacks.interface.observation import Observation, State
from attacks.interface.options import NOT_NEGATIVE, POSITIVE, above_zero_to
from attacks.interface.torch_tools import LBFGS, Adam, cast_state, choose_device
from attacks.networks.probing import as_trained, check_differentiable, count_outputs
from attacks.update.intervals import EntryIntervals, possible_entries
from attacks.update.local_training import Coding, LocalOptimizer, LocalTraining, Loss

TRACE_EVERY = 20  # iterations between two looks at the loss: each look waits for a GPU
SMOOTHEST, SHARPEST = 1.0, 0.01  # ε of a simulated Adam in typical sizes of a gradient (chosen on four 8x8 digits)
MOST_UNROLLED = 1000  # steps whose parameters are in memory together
SHARP_AFTER = 3 / 4  # of the iterations
DECAYS = (3 / 8, 5 / 8, 7 / 8)  # of the iterations: there the step size falls to a tenth (the code of Geiping et al.)


@register
@dataclass(frozen=True)
class GradientMatchingAttack(Attack):
    """Search for images that give the same update when the client's training, as far as it is known, is repeated.

    An adaptive attacker compares with the update nearest to the simulated one that compression would have turned into
    what was sent: in the intervals of known levels, on the side of zero of known signs, anywhere where an entry was
    left out (kept_fraction, quantization_bits). Noise, clipping and lost bits need no such step.

    distance: cosine, 1 − ⟨Δ̂, Δ⟩ / (‖Δ̂‖ ‖Δ‖), or euclidean, ‖Δ̂ − Δ‖² / ‖Δ‖².
    optimizer: adam or lbfgs.
    signed: let Adam follow the signs of the gradients.
    iterations: steps of the optimizer.
    learning_rate: of the images' Adam.
    total_variation: weight of the total variation per pixel.
    image_std: standard deviation of the images at the start.
    labels: where they are not told, `inferred` from the last layer, or optimized as `soft` labels.
    order: where the batches are not told, `fixed`, one random order in every epoch, or `drawn`, another one in every
        epoch and iteration.
    loss: of local training; auto is cross_entropy, for one output mse.
    coding: targets of mse, of the other classes and of the right one; by default ±1 for one output, −0.1 and 0.9 for
        several.
    max_unrolled: simulate at most so many steps, of a larger learning rate.
    clamp: keep images in the pixel range.
    restarts: independent starts, of which the one with the smallest distance is returned.
    variant: fedleak matches a part of the update's entries and looks ahead (needs adam); whole does neither.
    matching_ratio: share of each tensor's entries, the largest of the observed update, that fedleak matches.
    blending: weight of the gradient ahead in fedleak's steps.
    probe_radius: length of the step up the slope at which that gradient is taken.
    precision: of all numbers.
    device: auto, cpu or cuda.
    """

    name: ClassVar[str] = "gradient_matching"
    infers: ClassVar[tuple[str, ...]] = ("num_private", "pixel_mean")

    distance: Literal["cosine", "euclidean"] = "cosine"
    optimizer: Literal["adam", "lbfgs"] = "adam"
    signed: bool = True
    iterations: Annotated[int, POSITIVE] = 4800
    learning_rate: Annotated[float, POSITIVE] = 0.1
    total_variation: Annotated[float, NOT_NEGATIVE] = 1e-4
    image_std: Annotated[float, POSITIVE] = 0.2
    labels: Literal["inferred", "soft"] = "inferred"
    order: Order = "drawn"
    loss: Literal["auto", "cross_entropy", "mse"] = "auto"
    coding: Coding | None = None
    max_unrolled: Annotated[int, above_zero_to(MOST_UNROLLED)] = 50
    clamp: bool = True
    restarts: Annotated[int, POSITIVE] = 1
    variant: Literal["whole", "fedleak"] = "whole"
    matching_ratio: Annotated[float, above_zero_to(1.0)] = 0.5
    blending: Annotated[float, above_zero_to(1.0)] = 0.5
    probe_radius: Annotated[float, POSITIVE] = 1.0
    precision: Literal["float32", "float64"] = "float32"
    device: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "fedleak" and self.optimizer == "lbfgs":
            raise InputError(f"attack {self.name!r}: fedleak blends gradients, which lbfgs cannot follow: use adam")
        if self.coding is not None and not (isinstance(self.coding, Sequence) and len(set(self.coding)) == 2):
            wanted = "two different targets, of the other classes and of the right one"
            raise InputError(f"attack {self.name!r}: coding is {self.coding}, it has to be {wanted}")

    def check_requirements(self, observation: Observation, knowledge: Knowledge) -> None:
        steps = () if knowledge.batches is not None else ("steps",)
        knowledge.require(self.name, "learning_rate", *steps, because="it simulates local training")
        LocalOptimizer.believed(knowledge)
        count_candidates(self.name, observation.input_shape, knowledge)
        if knowledge.num_private is not None:
            self._simulated_steps(knowledge, torch.device("cpu"))
            check_labels(knowledge)
        check_differentiable(self.name, observation.model, observation.input_shape)

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """Look at the first pair of checkpoints that differ.

        learning_rate and steps are needed (or batches, which tell the steps); batch_size, labels and pixel_range are
        used where known, else inferred or assumed, and of the optimizer torch's defaults are. Under Adam, labels that
        are not told are soft. residual of a candidate: the distance with all over that without it.
        """
        problem, warnings = self.matching(observation, knowledge, generator)
        best = best_of_restarts(self.restarts, self.iterations, partial(problem.solve, generator), progress)
        if math.isnan(best.residual):
            diverged = "nothing returned: the simulated training diverged (learning_rate, steps or momentum wrong?)"
            warnings = (*warnings, diverged)
            best = replace(best, images=best.images[:0], classes=best.classes[:0])
        return Reconstruction(
            best.images,
            problem.relative_distance_without(best),
            relative_residual=problem.relative_residual(best) if len(best.images) else math.nan,
            loss_trace=best.trace,
            warnings=warnings,
            facts={"distance": best.residual, "simulated_steps": float(len(problem.batches()))},
        )

    def matching(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator
    ) -> tuple["UpdateMatching", tuple[str, ...]]:
        """Return (the optimization that these checkpoints define, warnings about what was assumed).

        knowledge: with num_private and pixel_mean.
        """
        count_candidates(self.name, observation.input_shape, knowledge)
        observation, warnings = observation.one_round()
        observation = replace(observation, model=as_trained(observation.model, *observation.pairs[0]))
        if observation.threat_model == "observer":
            warnings += ("one client's training is simulated, the update is an average over clients",)
        prepare = partial(cast_state, device=choose_device(self.device), dtype=getattr(torch, self.precision))
        initial, observed = prepare(observation.initial), prepare(observation.delta())
        like = next(iter(observed.values()))
        outputs = count_outputs(observation.model, observation.input_shape)
        loss: Loss = ("mse" if outputs == 1 else "cross_entropy") if self.loss == "auto" else self.loss
        simulated = self._simulated_steps(knowledge, like.device)
        optimizer, assumed = LocalOptimizer.believed(knowledge)
        rate = optimizer.learning_rate * simulated.learning_rate_factor
        believed = replace(optimizer, learning_rate=rate)
        training = LocalTraining(observation.model, initial, observation.trainable, loss, believed, self.coding)
        warnings += assumed
        classes = None
        if knowledge.labels is None and self.labels == "inferred" and optimizer.adaptive:
            warnings += (f"labels cannot be counted after {optimizer.kind}: they are optimized beside the images",)
        elif knowledge.labels is not None or self.labels == "inferred":
            stepped = replace(knowledge, steps=simulated.client_steps)
            classes, notes = told_or_inferred_classes(observation, stepped, training, outputs)
            classes, warnings = classes.to(like), warnings + notes
        return UpdateMatching(
            training=training,
            observed=observed,
            matched=largest_entries(observed, self.matching_ratio) if self.variant == "fedleak" else None,
            possible=possible_entries(observed, knowledge),
            classes=classes,
            batches=simulated.batches(generator),
            shape=(simulated.num_images, *observation.input_shape),
            outputs=outputs,
            bounds=knowledge.input_bounds(like) if self.clamp else None,
            options=self,
        ), warnings + simulated.warnings

    def _simulated_steps(self, knowledge: Knowledge, device: torch.device) -> SimulatedSteps:
        momentum = LocalOptimizer.believed(knowledge)[0].momentum
        simulated = SimulatedSteps.of(knowledge, self.order, momentum, self.max_unrolled, device)
        if self.optimizer == "lbfgs" and self.order == "drawn" and simulated.told is None:
            raise InputError(
                f"attack {self.name!r}: lbfgs cannot follow batches that are drawn anew: set order to fixed"
            )
        return simulated


@dataclass(frozen=True)
class MatchingSolution(Solution):
    """A solution of gradient matching.

    classes: (M, K) probabilities. The residual is the distance that is left, as of `update_distance`.
    """

    classes: Tensor


@dataclass(frozen=True)
class UpdateMatching:
    """One optimization, ready to be started from any random numbers.

    matched: 1 at the entries of the update that are compared, None where all are.
    possible: what each entry may have been before compression, None where the update is taken as it is.
    classes: (M, K) probabilities, or None where they are optimized too.
    batches: draws the batches of an iteration.
    shape: of the candidates.
    outputs: K.
    bounds: lowest and highest input, None where nothing is clamped.
    """

    training: LocalTraining
    observed: State
    matched: State | None
    possible: dict[str, EntryIntervals] | None
    classes: Tensor | None
    batches: Callable[[], Batches]
    shape: tuple[int, int, int, int]
    outputs: int
    bounds: tuple[Tensor, Tensor] | None
    options: GradientMatchingAttack

    def objective(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the distance with the penalty, a scalar, differentiable in both."""
        distance, weight = self.distance(images, classes), self.options.total_variation
        return distance + weight * total_variation(images) if weight else distance

    def distance(self, images: Tensor, classes: Tensor) -> Tensor:
        simulated, observed = self.training.update(images, classes, self.batches()), self.observed
        if self.possible is not None:
            simulated, observed = nearest_possible(simulated, self.possible)
        if self.matched is not None:
            simulated, observed = masked(simulated, self.matched), masked(observed, self.matched)
        return update_distance(self.options.distance, simulated, observed)

    def slope(self, images: Tensor, logits: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return (the objective, gradients to descend along: in images and, where they are optimized, in logits)."""
        batches, options = self.batches(), self.options
        step = replace(self, batches=lambda: batches)  # FedLeak's two looks are at the same order of images
        losses: list[Tensor] = []

        def gradients_at(variables: Sequence[Tensor]) -> Sequence[Tensor]:
            loss = step.objective(variables[0], self._classes(variables[-1]))
            losses.append(loss.detach())
            return torch.autograd.grad(loss, variables)

        variables = [images] if self.classes is not None else [images, logits]
        if options.variant == "fedleak":
            gradients = blended(gradients_at, variables, options.blending, options.probe_radius)
        else:
            gradients = list(gradients_at(variables))
        return losses[0], gradients

    def smoothed(self, share: float) -> "UpdateMatching":
        """Return the problem after a share of the iterations: the client's Adam is smoothed, less and less."""
        if not self.training.optimizer.adaptive:
            return self
        smoothing = SMOOTHEST * (SHARPEST / SMOOTHEST) ** min(1.0, share / SHARP_AFTER)
        optimizer = replace(self.training.optimizer, smoothing=smoothing)
        return replace(self, training=replace(self.training, optimizer=optimizer))

    def solve(self, generator: torch.Generator, report: ReportLoss) -> MatchingSolution:
        """Optimize from a random start, drawn on the CPU so that every device starts alike."""
        options, like = self.options, next(iter(self.observed.values()))
        images = torch.randn(self.shape, generator=generator, dtype=like.dtype) * options.image_std
        images = images.to(like.device).requires_grad_()
        logits = torch.randn((self.shape[0], self.outputs), generator=generator, dtype=like.dtype)
        logits = logits.to(like.device).requires_grad_(self.classes is None)
        variables = [images] if self.classes is not None else [images, logits]
        optimizer, schedule = self._optimizer(variables)
        problem = self
        trace: list[tuple[int, float]] = []

        def closure() -> Any:  # torch wants a float, which would wait for the device
            optimizer.zero_grad(set_to_none=True)
            loss, gradients = problem.slope(images, logits)
            for variable, gradient in zip(variables, gradients, strict=True):
                sign = options.signed and options.optimizer == "adam"
                variable.grad = gradient.sign() if sign else gradient
            return loss

        for i in range(options.iterations):
            problem = self.smoothed(i / options.iterations)
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
        return MatchingSolution(images, float(self.distance(images, classes).detach()), tuple(trace), classes)

    def relative_distance_without(self, found: MatchingSolution) -> Tensor:
        """Return (M,), the distance with all candidates over that with one image replaced by the mean input, 0."""
        kept = 1 - torch.eye(len(found.images)).to(found.images)[..., None, None, None]
        distances = [float(self.distance(own * found.images, found.classes).detach()) for own in kept]
        return torch.tensor([found.residual / max(distance, 1e-30) for distance in distances])

    def relative_residual(self, found: MatchingSolution) -> float:
        """Return ‖Δ̂ − Δ‖ / ‖Δ‖."""
        simulated = self.training.update(found.images, found.classes, self.batches())
        return float(update_distance("euclidean", simulated, self.observed).detach()) ** 0.5

    def _classes(self, logits: Tensor) -> Tensor:
        if self.classes is not None:
            return self.classes
        return logits.sigmoid() if self.outputs == 1 else logits.softmax(1)

    def _optimizer(self, variables: list[Tensor]) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        options = self.options
        if options.optimizer == "lbfgs":
            lbfgs = LBFGS(variables, lr=options.learning_rate)
            return lbfgs, torch.optim.lr_scheduler.ConstantLR(lbfgs, 1.0)
        adam = Adam(variables, lr=options.learning_rate)
        milestones = [int(options.iterations * share) for share in DECAYS]
        return adam, torch.optim.lr_scheduler.MultiStepLR(adam, milestones)
