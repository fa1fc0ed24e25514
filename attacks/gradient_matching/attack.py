"""Gradient matching, on one gradient or on local training (Zhu et al. 2019; Geiping et al. 2020; Dimitrov et al. 2022).

The client's steps are simulated from candidate images and labels, and both are moved until the simulated update is the
observed one. One step on all images is the published attack on a gradient. The defaults are Geiping et al.'s Inverting
Gradients; Zhu et al.'s Deep Leakage from Gradients is `distance: euclidean, labels: soft, optimizer: lbfgs,
learning_rate: 1, iterations: 300, total_variation: 0, clamp: false, image_std: 1`.
"""

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch

from attacks.gradient_matching.batch_order import Order, Schedule, believed_classes
from attacks.gradient_matching.local_training import LocalTraining, Loss
from attacks.gradient_matching.matching import MatchingOptions, UpdateMatching
from attacks.interface.attack import Attack, Progress, Reconstruction, register, report_restart, silent
from attacks.interface.devices import cast_state, choose_device
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.options import check_values
from attacks.update.private_set import Belief, check_told

NAME = "gradient_matching"


@register
@dataclass(frozen=True)
class GradientMatchingAttack(MatchingOptions, Attack):
    """Find images whose simulated local training gives Δθ.

    distance: cosine, 1 − ⟨Δ̂, Δ⟩ / (‖Δ̂‖ ‖Δ‖), or euclidean, ‖Δ̂ − Δ‖² / ‖Δ‖². labels, where they are not told:
    `inferred` from the last layer or optimized as `soft` labels. order, where the batches are not told: `fixed`, one
    random order in every epoch, or `drawn`, another one in every epoch and iteration. loss: of local training; auto is
    cross_entropy, for one output mse. momentum: of local training. max_unrolled: simulate at most so many steps, of a
    larger learning rate.
    optimizer: adam, by the signs of the gradients where `signed`, or lbfgs. learning_rate: of the images' Adam.
    total_variation: weight of Σ |∂x| per pixel. clamp: keep images in the pixel range. image_std: of the random start.
    restarts: independent starts; the one with the smallest distance is returned.
    """

    name: ClassVar[str] = NAME

    labels: Literal["inferred", "soft"] = "inferred"
    order: Order = "drawn"
    loss: Literal["auto", "cross_entropy", "mse"] = "auto"
    momentum: float = 0.0
    max_unrolled: int = 50
    clamp: bool = True
    restarts: int = 1
    precision: Literal["float32", "float64"] = "float32"
    device: str = "auto"

    def __post_init__(self) -> None:
        check_values(
            self,
            ("iterations", "learning_rate", "max_unrolled", "restarts", "image_std"),
            not_negative=("total_variation",),
            choices={
                "distance": ("cosine", "euclidean"), "labels": ("inferred", "soft"), "order": ("fixed", "drawn"),
                "loss": ("auto", "cross_entropy", "mse"), "optimizer": ("adam", "lbfgs"),
                "precision": ("float32", "float64"),
            },
        )  # fmt: skip
        if not 0 <= self.momentum < 1:
            raise InputError(f"attack {NAME!r}: momentum is {self.momentum}, choose one from 0 to below 1")

    def check(self, observation: Observation, knowledge: Knowledge) -> None:
        check_told(NAME, observation, knowledge)
        knowledge.require(NAME, "learning_rate", because="it simulates local training")
        if knowledge.batches is None:
            knowledge.require(NAME, "steps", because="it simulates local training")
        if knowledge.optimizer not in (None, "sgd"):
            raise InputError(f"attack {NAME!r} simulates sgd, the clients use {knowledge.optimizer!r} (use 'ntk')")

    def reconstruct(
        self,
        observation: Observation,
        knowledge: Knowledge,
        generator: torch.Generator,
        progress: Progress = silent,
    ) -> Reconstruction:
        """Run the attack on the first pair of checkpoints that differ; the number of images and their mean are inferred
        from all pairs.

        learning_rate and steps are needed (or batches, which tell the steps); batch_size, labels, num_private,
        pixel_mean and pixel_range are used where known, else inferred or assumed. residual of a candidate: the distance
        with all over the distance with its image replaced by the mean one; near 0: it cannot be spared.
        """
        start = time.perf_counter()
        self.check(observation, knowledge)
        belief = Belief.of(NAME, observation, knowledge)
        problem, warnings = self.problem(observation, knowledge, belief, generator)
        total = self.restarts * self.iterations
        solutions = [
            problem.solve(generator, partial(report_restart, progress, restart * self.iterations, total))
            for restart in range(self.restarts)
        ]
        best = min(solutions, key=lambda solution: (math.isnan(solution.distance), solution.distance))
        if math.isnan(best.distance):
            warnings.append(
                "nothing returned: the simulated training diverged (learning_rate, steps or momentum wrong?)"
            )
            best = replace(best, images=best.images[:0], classes=best.classes[:0])
        share = problem.shares(best)
        order = share.argsort(stable=True)
        return Reconstruction(
            images=best.images[order].float().cpu(),
            residual=share[order].float().cpu(),
            pixel_mean=belief.pixel_mean,
            num_inferred=belief.num_inferred,
            relative_residual=problem.relative_residual(best) if len(share) else math.nan,
            loss_trace=best.trace,
            warnings=tuple(warnings),
            seconds=time.perf_counter() - start,
            facts={"distance": best.distance, "simulated_steps": float(len(problem.batches()))},
        )

    def problem(
        self, observation: Observation, knowledge: Knowledge, belief: Belief, generator: torch.Generator
    ) -> tuple[UpdateMatching, list[str]]:
        """(the optimization that these checkpoints and this knowledge define, warnings about what was assumed)."""
        observation, ignored = observation.one_round()
        warnings = [*belief.warnings, *ignored]
        device, dtype = choose_device(self.device), getattr(torch, self.precision)
        observed = cast_state(observation.delta(), device, dtype)
        if observation.threat_model == "observer":
            warnings.append("one client's training is simulated, the update is an average over clients")
        initial = cast_state(observation.initial, device, dtype)
        model = observation.model.to(device).eval()
        with torch.no_grad():
            probe = torch.zeros((1, *observation.input_shape), device=device, dtype=dtype)
            outputs = torch.func.functional_call(model, initial, (probe,)).numel()
        loss: Loss = ("mse" if outputs == 1 else "cross_entropy") if self.loss == "auto" else self.loss
        steps = len(knowledge.batches) if knowledge.batches is not None else knowledge.steps or 1
        told = replace(knowledge, num_private=belief.num_private, steps=steps)
        classes = None
        if knowledge.labels is not None or self.labels == "inferred":
            classes, notes = believed_classes(observation, told, outputs, loss, self.momentum)
            classes, warnings = classes.to(device, dtype), warnings + notes
        schedule = Schedule.of(told, self.order, self.momentum, self.max_unrolled, device)
        if self.optimizer == "lbfgs" and self.order == "drawn" and schedule.told is None:
            raise InputError(f"attack {NAME!r}: lbfgs cannot follow batches that are drawn anew: set order to fixed")
        rate = (knowledge.learning_rate or 1.0) * schedule.stretch
        return UpdateMatching(
            training=LocalTraining(model, initial, observation.trainable, loss, rate, self.momentum),
            observed=observed,
            classes=classes,
            batches=schedule.batches(generator),
            shape=(belief.num_private, *observation.input_shape),
            outputs=outputs,
            bounds=belief.bounds(knowledge, probe) if self.clamp else None,
            options=self,
        ), [*warnings, *schedule.warnings]
