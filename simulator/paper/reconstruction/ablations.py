"""Appendices G.1 and H of Loo et al. (2024): change one thing at a time, on the same images: the learning rate of
training (H.2), softplus in place of ReLU (H.3), 64-bit numbers (H.5). The labels that images and duals imply (eq. 6,
G.1)."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, State
from attacks.interface.torch_tools import torch_generator
from attacks.networks.mlp import Beta
from attacks.ntk.attack import NTKAttack, NTKOptimization
from attacks.ntk.objective import Objective
from attacks.scoring.images import distances, matched_l2
from clients.config import Count, Positive, Section
from clients.distillation.methods import linearized_outputs
from simulator.paper.claims import Statistics
from simulator.paper.experiment import ExperimentRun, cell_experiment, num_private, seconds_per_step
from simulator.paper.measures import draw_lines, floor_of
from simulator.paper.reconstruction.duals import Fit, fit, seconds_of_training
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner

NEAR = 0.5  # of the distance to the nearest other private image: an image nearer than this share counts as found


class AblationSettings(Section):
    """The section `settings` of the experiment's file.

    iterations, learning_rate: of the attack.
    rates: factors on the learning rate of training.
    early_loss: where training stops for the variant `stopped`.
    """

    iterations: Count = 80_000
    learning_rate: Positive = 0.02
    rates: list[Positive] = Field([0.3, 3.0])
    early_loss: Positive = 0.1


@dataclass(frozen=True)
class Unsmoothed(NTKAttack):
    """The attack with ReLU itself in place of softplus (H.3), for comparison. It is not registered as an attack."""

    def _optimization(self, observation: Observation, knowledge: Knowledge) -> NTKOptimization:
        problem = super()._optimization(observation, knowledge)
        return replace(problem, objective=WithReLU(problem.objective))


class WithReLU:
    """An objective that is never smoothed, whatever the inverse temperature."""

    def __init__(self, smoothed: Objective):
        self.smoothed, self.delta = smoothed, smoothed.delta

    def loss(self, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        return self.smoothed.loss(images, duals, None)

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: Beta) -> State:
        return self.smoothed.gradient_sum(images, duals, None)

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        return self.smoothed.inner(direction, images, duals, None)


def cost(run: ExperimentRun, settings: AblationSettings) -> float:
    """Return the seconds if each cell took as long as that with most images; float64 counts as two variants."""
    cell = max(run.cells, key=num_private)
    owner, one_step = Owner.of(cell.scenario), cell.scenario.training.model_copy(update={"steps": 1})
    trained, attack = fit(cell, owner, one_step), NTKAttack(learning_rate=0.02)
    iteration = seconds_per_step(lambda steps: attacked(owner, trained, replace(attack, iterations=steps)))
    variants = 6 + len(settings.rates)
    return len(run.cells) * variants * (seconds_of_training(cell, owner) + iteration * settings.iterations)


def attacked(owner: Owner, trained: Fit, attack: NTKAttack, labels: bool = False) -> dict[str, float]:
    """Attack a trained network. Return the mean L2 of reconstructions and floor, with `labels` also `label_scores`."""
    final = {name: value + trained.delta.get(name, 0) for name, value in trained.initial.items()}
    observation = Observation(trained.model, ((trained.initial, final),), owner.data.shape)
    mean, std = owner.data.normalization.mean, owner.data.normalization.std or None
    knowledge = Knowledge(num_private=len(owner.images), pixel_mean=mean, pixel_std=std)
    result = attack.run(observation, knowledge, torch_generator(owner.scenario.seed, "appendix_h"))
    l2, match = matched_l2(owner.images, result.images.float())
    public = owner.data.normalization.inputs(owner.data.public()[0])
    found = {"l2": float(l2.mean()), "floor_l2": floor_of(owner.images, public, len(result.images))}
    if labels:
        assert result.duals is not None
        implied = linearized_outputs(trained.model, trained.initial, result.images.double(), result.duals[0].double())
        found |= label_scores(owner, torch.as_tensor(l2), implied[torch.as_tensor(match)])
    return found


def label_scores(owner: Owner, l2: Tensor, implied: Tensor) -> dict[str, float]:
    """Score the labels that reconstructions imply. `found`: number of private images within `NEAR` of their
    reconstruction. Of these `right`: share whose implied label has the right sign; `label_error`: mean |implied − y|.

    l2: (N,), of the reconstructions. implied: (N, 1), f_θ₀(x̂) + Σ_j K_θ₀(x̂, x̂_j) α_j, which equation 6 sets to y.
    """
    others = distances(owner.images, owner.images).fill_diagonal_(math.inf).min(1).values
    near = l2 < NEAR * others
    wanted, given = owner.targets[near, 0].double(), implied[near, 0].detach().cpu()
    error = (given - wanted).abs()
    return {
        "found": int(near.sum()),
        "right": float((given * wanted > 0).double().mean()),
        "label_error": float(error.mean()),
    }


def ablation_statistics(data: pd.DataFrame) -> Statistics:
    """Compute the mean L2 of every variant, and the scores of labels. data: the rows of `variants_of`."""
    l2 = data.groupby("variant").l2.mean()
    by_rate = data[data.variant.isin(["recipe", "rate"])].groupby("rate").l2.mean()
    labels = data[data.variant.isin(["fitted", "stopped"])].groupby("variant")[["found", "right", "label_error"]].mean()
    return {
        "l2": l2,
        "floor": data.floor_l2.mean(),
        "by_rate": by_rate,
        "spread": float(by_rate.max() / by_rate.min() - 1),
        "found": labels.found,
        "right": labels.right,
        "label_error": labels.label_error,
    }


@cell_experiment(
    "appendix_h",
    "learning rate, softplus, 64 bits, and labels: one change at a time",
    ablation_statistics,
    partial(draw_lines, x="num_private", y="l2", hue="variant"),
    AblationSettings,
    cost,
)
def variants_of(cell: Cell, settings: AblationSettings) -> list[dict[str, Any]]:
    """Return a row per variant: `variant`, `rate` (of training), `l2`, `floor_l2`; if training is linearized also
    `found`, `right` and `label_error`, as of `label_scores`."""
    owner, training = Owner.of(cell.scenario), cell.scenario.training
    attack = NTKAttack(kernel="final", iterations=settings.iterations, learning_rate=settings.learning_rate)
    common = {"seed": cell.scenario.seed, "num_private": len(owner.images), "rate": training.learning_rate}
    trained = fit(cell, owner)
    rows = [
        {**common, "variant": "recipe", **attacked(owner, trained, attack)},
        {**common, "variant": "relu", **attacked(owner, trained, Unsmoothed(**vars(attack)))},
    ]
    wide = fit(cell, owner, dtype=torch.float64)
    rows.append({**common, "variant": "float64", **attacked(owner, wide, replace(attack, precision="float64"))})
    for factor in settings.rates:
        rate, steps = factor * training.learning_rate, math.ceil(training.steps / factor) if training.steps else None
        other = fit(cell, owner, training.model_copy(update={"learning_rate": rate, "steps": steps}))
        rows.append({**common, "variant": "rate", **attacked(owner, other, attack), "rate": rate})
    for name, loss in (("fitted", training.stop_at_loss), ("stopped", settings.early_loss)):
        linear = training.model_copy(update={"dynamics": "linearized", "stop_at_loss": loss})
        found = attacked(owner, fit(cell, owner, linear), replace(attack, kernel="initial"), labels=True)
        rows.append({**common, "variant": name, **found})
    return rows
