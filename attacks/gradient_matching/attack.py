"""Gradient matching, on one gradient or on local training (Zhu et al. 2019; Geiping et al. 2020; Dimitrov et al. 2022).

The client's steps are simulated from candidate images and labels, and both are moved until the simulated update is the
observed one. One step on all images is the published attack on a gradient. The defaults are Geiping et al.'s Inverting
Gradients; Zhu et al.'s Deep Leakage from Gradients is `distance: euclidean, labels: soft, optimizer: lbfgs,
learning_rate: 1, iterations: 300, total_variation: 0, clamp: false, image_std: 1`.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch

from attacks.gradient_matching.batch_order import Order, SimulatedSteps, check_labels, told_or_inferred_classes
from attacks.gradient_matching.local_training import LocalTraining, Loss
from attacks.gradient_matching.matching import MatchingOptions, UpdateMatching
from attacks.interface.attack import Attack, Progress, Reconstruction, register
from attacks.interface.devices import cast_state, choose_device
from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.options import check_values
from attacks.interface.restarts import best_of_restarts
from attacks.networks.probing import count_outputs


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

    name: ClassVar[str] = "gradient_matching"
    infers: ClassVar[tuple[str, ...]] = ("num_private", "pixel_mean")

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
        )
        if not 0 <= self.momentum < 1:
            raise InputError(f"attack {self.name!r}: momentum is {self.momentum}, choose one from 0 to below 1")

    def check_requirements(self, observation: Observation, knowledge: Knowledge) -> None:
        knowledge.require(self.name, "learning_rate", because="it simulates local training")
        if knowledge.batches is None:
            knowledge.require(self.name, "steps", because="it simulates local training")
        if knowledge.optimizer not in (None, "sgd"):
            raise InputError(f"attack {self.name!r} simulates sgd, the clients use {knowledge.optimizer!r} (use 'ntk')")
        if knowledge.num_private is not None:
            self._simulated_steps(knowledge, torch.device("cpu"))
            check_labels(knowledge)

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Progress
    ) -> Reconstruction:
        """Looks at the first pair of checkpoints that differ.

        learning_rate and steps are needed (or batches, which tell the steps); batch_size, labels and pixel_range are
        used where known, else inferred or assumed. residual of a candidate: the distance with all over the distance
        with its image replaced by the mean one; near 0: it cannot be spared.
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
    ) -> tuple[UpdateMatching, tuple[str, ...]]:
        """(the optimization that these checkpoints define, warnings about what was assumed).

        knowledge: with num_private and pixel_mean.
        """
        observation, warnings = observation.one_round()
        if observation.threat_model == "observer":
            warnings += ("one client's training is simulated, the update is an average over clients",)
        prepare = partial(cast_state, device=choose_device(self.device), dtype=getattr(torch, self.precision))
        initial, observed = prepare(observation.initial), prepare(observation.delta())
        like = next(iter(observed.values()))
        outputs = count_outputs(observation.model, observation.input_shape)
        loss: Loss = ("mse" if outputs == 1 else "cross_entropy") if self.loss == "auto" else self.loss
        simulated = self._simulated_steps(knowledge, like.device)
        classes = None
        if knowledge.labels is not None or self.labels == "inferred":
            classes, notes = told_or_inferred_classes(
                observation, replace(knowledge, steps=simulated.client_steps), outputs, loss, self.momentum
            )
            classes, warnings = classes.to(like), warnings + notes
        rate = (knowledge.learning_rate or 1.0) * simulated.learning_rate_factor
        return UpdateMatching(
            training=LocalTraining(observation.model, initial, observation.trainable, loss, rate, self.momentum),
            observed=observed,
            classes=classes,
            batches=simulated.batches(generator),
            shape=(simulated.num_images, *observation.input_shape),
            outputs=outputs,
            bounds=knowledge.input_bounds(like) if self.clamp else None,
            options=self,
        ), warnings + simulated.warnings

    def _simulated_steps(self, knowledge: Knowledge, device: torch.device) -> SimulatedSteps:
        simulated = SimulatedSteps.of(knowledge, self.order, self.momentum, self.max_unrolled, device)
        if self.optimizer == "lbfgs" and self.order == "drawn" and simulated.told is None:
            raise InputError(
                f"attack {self.name!r}: lbfgs cannot follow batches that are drawn anew: set order to fixed"
            )
        return simulated
