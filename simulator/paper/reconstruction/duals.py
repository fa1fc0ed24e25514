"""Figures 7 and 11: the dual of an image tells how easily it is reconstructed, and how slowly it was fitted."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.kernel.empirical import empirical_ntk, kernel_duals, relative_residual
from clients.config import Section, TrainingConfig
from clients.models import option_values
from clients.training import TrainingHook, TrainingLoop, TrainingReport, planned_steps, train
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, cell_experiment, num_private, seconds_per_step, sweep_experiment
from simulator.paper.measures import draw_scatter, score_table, settings_of, spearman
from simulator.rundir.run import Run
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner

DUALS = ["accumulated", "finite_width", "infinite_width"]
NETWORK = ["num_private", "width", "dynamics", "seed"]
PROTECTED = 0.9  # of the floor's distance: images further away than this share count as protected
RIDGE = 1e-9  # of kernels in float64: regression without a ridge, and safe from rounding


def dual_statistics(data: pd.DataFrame) -> Statistics:
    """Compute per network the rank correlation of |α| and L2, and L2 of the quarters of smallest and largest |α|."""
    networks = [network for _, network in data.groupby(NETWORK)]
    ranks = pd.Series([spearman(network, "alpha", "l2") for network in networks])
    quarters = pd.DataFrame([weak_and_strong(network) for network in networks])
    return {
        "rank": ranks.mean(),
        "rank_range": [ranks.min(), ranks.max()],
        "networks": len(ranks),
        **quarters.mean(),
        "protected_from": PROTECTED,
        "protected": Signs.of(quarters.weak > PROTECTED * quarters.floor),
    }


@sweep_experiment(
    "figure7",
    "the duals against reconstruction error, image by image",
    dual_statistics,
    partial(draw_scatter, x="alpha", y="l2", style="dynamics"),
)
def dual_table(record: Run) -> pd.DataFrame:
    """Return a row per private image: `alpha`, |K⁻¹ y| at infinite width, `l2`, and `found_dual`, the attack's |α|."""
    settings = score_table(record).set_index("cell")
    parts = []
    for name, own in record.samples.groupby("cell"):
        owner = Owner.of(record.cells[name].scenario)
        alpha = kernel_duals(owner.kernel(owner.images.double()), owner.targets.double(), RIDGE).norm(dim=1)
        part = own.assign(alpha=alpha.numpy()[own.image], found_dual=own.dual)
        parts.append(part.assign(**{column: settings.loc[name, column] for column in NETWORK}))
    columns = [*NETWORK, "image", "alpha", "found_dual", "l2", "floor_l2", "mean_image_l2"]
    return pd.concat(parts, ignore_index=True)[columns]


def weak_and_strong(network: pd.DataFrame) -> dict[str, float]:
    """Return the mean L2 of the images in the lowest (`weak`) and the highest (`strong`) quarter of |α|, and the floor
    of the lowest (`floor`): of public images or of their mean, whichever are nearer."""
    low, high = network.alpha.quantile([0.25, 0.75])
    weak, strong = network[network.alpha <= low], network[network.alpha >= high]
    floor = float(weak[["floor_l2", "mean_image_l2"]].mean().min())
    return {"weak": float(weak.l2.mean()), "strong": float(strong.l2.mean()), "floor": floor}


@dataclass(frozen=True, eq=False)
class ResidualAccumulator(TrainingHook):
    """Computes the duals of local training without changing it: adds up residuals as SGD adds up gradients.

    One step of rate η and momentum μ on the mean of ½ (f − y)² moves θ by η v with v ← μ v + (1/N) Σ_j r_j ∇f(x_j),
    r_j = y_j − f(x_j). While ∇f stays what it was, Δθ = Σ_j α_j ∇f(x_j) where α_j sums up the same v over r_j / N: the
    discrete form of α_j ∝ ∫ r_j dt (Loo et al. 2024, appendix C.1). Full batches only.
    """

    targets: Tensor
    training: TrainingConfig
    duals: Tensor
    velocity: Tensor

    def instrument(self, loop: TrainingLoop, count: int) -> TrainingLoop:
        def predict(images: Tensor) -> Tensor:
            outputs = loop.predict(images)
            residual = self.targets - outputs.detach()
            self.velocity.mul_(self.training.momentum).add_(residual / count)
            self.duals.add_(self.training.learning_rate * self.velocity)
            return outputs

        return replace(loop, predict=predict)


@dataclass(frozen=True, eq=False)
class Fit:
    """A trained network, all in float64.

    initial: θ₀.
    delta: Δθ.
    duals: (N, K), added up in training.
    """

    model: nn.Module
    initial: State
    delta: State
    duals: Tensor
    report: TrainingReport


def fit(cell: Cell, owner: Owner, training: TrainingConfig | None = None, dtype: torch.dtype = torch.float32) -> Fit:
    """Train a fresh network of the cell's scenario on the owner's images, squared error, full batches."""
    training = training or cell.scenario.training
    model, images, targets = owner.network("fit").to(dtype), owner.images.to(dtype), owner.targets.to(dtype)
    initial = {name: value.double() for name, value in deepcopy(model.state_dict()).items()}
    followed = ResidualAccumulator(targets, training, torch.zeros_like(targets), torch.zeros_like(targets))
    report = train(model, images, targets, training, torch.Generator(), [followed])
    delta = {name: value - initial[name] for name, value in model.double().state_dict().items()}
    return Fit(model, initial, delta, followed.duals.double(), report)


def seconds_of_training(cell: Cell, owner: Owner) -> float:
    """Return the seconds of `fit` to its limit of steps, from a few steps measured now."""
    training = cell.scenario.training
    step = seconds_per_step(lambda steps: fit(cell, owner, training.model_copy(update={"steps": steps})))
    return step * planned_steps(training, len(owner.images))


def training_cost(run: ExperimentRun, _: Section) -> float:
    """Return the seconds if every network were as large as the largest, and trained to its limit of steps."""
    cell = max(run.cells, key=lambda cell: num_private(cell) * option_values(cell.scenario.model).get("width", 0) ** 2)
    return len(run.cells) * seconds_of_training(cell, Owner.of(cell.scenario))


def accumulated_statistics(data: pd.DataFrame) -> Statistics:
    """Tell how well Δθ is explained, and the correlation of |α| within each network; the signs of duals are those of
    the targets and agree in any case. data: as of `accumulated_table`."""
    agreement = data[DUALS].abs().groupby([data[name] for name in NETWORK]).corr().accumulated.unstack()
    frozen = data[data.dynamics == "linearized"].groupby(NETWORK).unexplained.first()
    found: dict[str, object] = {"unexplained": frozen.max(), "linearized_networks": len(frozen)}
    for dynamics, name in (("linearized", DUALS[1]), ("standard", DUALS[1]), ("standard", DUALS[2])):
        own = agreement[name][agreement.index.get_level_values("dynamics") == dynamics]
        found[f"{dynamics}_{name}"] = {"agreement": own.mean(), "least": own.min(), "networks": len(own)}
    return found


def draw(data: pd.DataFrame) -> plt.Figure:
    """Draw computed against accumulated |α|, each scaled so that the largest of a network is 1."""
    sizes = data[DUALS].abs()
    scaled = data.assign(**(sizes / sizes.groupby([data[name] for name in NETWORK]).transform("max")))
    kinds = scaled.melt([*NETWORK, "accumulated"], DUALS[1:], "kernel", "computed")
    return draw_scatter(kinds, "computed", "accumulated", style="kernel", size=None, log_x=False)


@cell_experiment(
    "figure11",
    "duals by kernel regression against accumulated residuals",
    accumulated_statistics,
    draw,
    Section,
    training_cost,
)
def accumulated_table(cell: Cell, _: Section) -> pd.DataFrame:
    """Return a row per image: α added up in training, by regression with the kernel at θ₀, and at infinite width.
    Beside them `unexplained`, ‖Δθ − Σ_j α_j ∇f_θ₀(x_j)‖ / ‖Δθ‖ with the duals added up, and the loss."""
    owner = Owner.of(cell.scenario)
    trained = fit(cell, owner)
    images, targets = owner.images.double(), owner.targets.double()
    with torch.no_grad():
        initial = torch.func.functional_call(trained.model, trained.initial, (images,))
    finite = kernel_duals(empirical_ntk(trained.model, trained.initial, images), targets - initial, RIDGE)
    infinite = kernel_duals(owner.kernel(images), targets, RIDGE)
    columns = zip(DUALS, (trained.duals, finite, infinite), strict=True)
    duals = {name: value[:, 0].numpy() for name, value in columns}
    missed = relative_residual(trained.model, trained.initial, trained.delta, images, trained.duals)
    found = {"train_loss": trained.report.last_loss, "unexplained": missed}
    network = {name: settings_of(cell)[name] for name in NETWORK}
    return pd.DataFrame({**network, "image": range(len(images)), **duals, **found})
