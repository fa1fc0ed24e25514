"""Theorem 2 (Loo et al. 2024) as numbers: RKIP's loss, in kernels, is the reconstruction loss, in parameters.

Appendix C as numbers: a point that the others already predict has dual 0, leaves no trace, and cannot be found.
"""

import itertools
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pandas as pd
import torch
from pydantic import Field
from torch import Tensor, nn

from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation, trained_names
from attacks.interface.torch_tools import choose_device, torch_generator
from attacks.kernel.empirical import empirical_ntk, kernel_duals
from attacks.ntk.attack import NTKAttack
from attacks.ntk.objective import make_objective
from attacks.scoring.images import matched_l2
from clients.config import Count, Positive, Section
from clients.distillation.methods import RKIP, linearized_update
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, cell_experiment, clocked, num_private, seconds_per_step
from simulator.paper.measures import draw_columns, floor_of
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner

TIMED_IMAGES = 5  # to extrapolate the cost of more


class RkipSettings(Section):
    """The section `settings` of the experiment's file.

    distilled: sizes of the set S, random images with labels ±1.
    """

    distilled: list[Count] = Field([2, 5, 10, 20])
    image_std: Positive = 0.2


def cost_of_rkip(run: ExperimentRun, settings: RkipSettings) -> float:
    """Return the seconds, from few images and the smallest set: kernels grow with the square of the images."""
    cell, least = run.cells[0], min(settings.distilled)
    private = num_private(cell)
    few = min(TIMED_IMAGES, private)
    timed = replace(cell, scenario=cell.scenario.with_images(few))
    seconds = clocked(loss_table, timed, settings.model_copy(update={"distilled": [least]}))
    return len(run.cells) * seconds * sum((private + size) ** 2 for size in settings.distilled) / (few + least) ** 2


def rkip_statistics(data: pd.DataFrame) -> Statistics:
    """Compute how far each form of the RKIP loss is from the reconstruction loss. data: rows as of `loss_table`."""
    return {
        "residual_error": data.rkip_residual_error.max(),
        "class_error": data.rkip_class_error.max(),
        "label_error_at_0": data[data.initial_output_0].rkip_label_error.max(),
        "label_error_elsewhere": data[~data.initial_output_0].rkip_label_error.median(),
        "sets": len(data),
    }


LOSSES = ["reconstruction", "rkip_residual", "rkip_label"]
draw_losses = partial(draw_columns, x="distilled", columns=LOSSES, hue="loss", col="initial_output_0", log_x=True)


@cell_experiment(
    "theorem2", "the RKIP loss is the reconstruction loss", rkip_statistics, draw_losses, RkipSettings, cost_of_rkip
)
def loss_table(cell: Cell, settings: RkipSettings) -> pd.DataFrame:
    """Return a row for each size of S, with outputs at initialization as they are or 0: `both_losses` and, as `_error`,
    the relative distance of each from the reconstruction loss."""
    owner, rows = Owner.of(cell.scenario).on(choose_device("auto")), []
    model = owner.network("theorem2").double()
    generator = torch_generator(cell.scenario.seed, "theorem2")
    for size in settings.distilled:
        images = torch.randn((size, *owner.data.shape), generator=generator, dtype=torch.float64).to(
            owner.images.device
        )
        labels = torch.tensor([1.0, -1.0]).repeat(size)[:size, None].to(images)
        for zero in (False, True):
            network = Centered(model) if zero else model
            losses = both_losses(network, owner, images * settings.image_std, labels)
            errors = {f"{name}_error": abs(loss / losses["reconstruction"] - 1) for name, loss in losses.items()}
            row = {"seed": cell.scenario.seed, "distilled": size, "initial_output_0": zero}
            rows.append({**row, **losses, **errors})
    return pd.DataFrame(rows)


def both_losses(model: nn.Module, owner: Owner, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the reconstruction loss in parameters, and RKIP in kernels: of residuals, of labels, and of residuals by
    the class `RKIP`. Δθ and the duals of S are those of kernel regression at θ₀."""
    state = model.state_dict()
    private, targets, kernel = owner.images.double(), owner.targets.double(), partial(empirical_ntk, model, state)
    with torch.no_grad():
        residual, wanted = targets - model(private), labels - model(images)
    of_private, cross, of_images = kernel(private), kernel(private, images), kernel(images)
    trained = {name: state[name] for name in trained_names(model)}
    objective = make_objective(model, owner.data.shape, trained, [state])
    delta = objective.gradient_sum(private, kernel_duals(of_private, residual)[None], None)
    objective, duals = make_objective(model, owner.data.shape, delta, [state]), kernel_duals(of_images, wanted)
    return {
        "reconstruction": float(objective.loss(images, duals[None], None).detach()),
        "rkip_residual": rkip(of_private, cross, of_images, residual, wanted),
        "rkip_label": rkip(of_private, cross, of_images, targets, labels),
        "rkip_class": float(RKIP(kernel, private, residual, 0.0)(images, wanted)),
    }


def rkip(private: Tensor, cross: Tensor, distilled: Tensor, targets: Tensor, labels: Tensor) -> float:
    """Return ‖y_T − K_TS α_S‖² in the norm of K_TT⁻¹, plus α_Sᵀ (K_SS − K_ST K_TT⁻¹ K_TS) α_S (theorem 2).

    private: K_TT, (N, N). cross: K_TS, (N, M). distilled: K_SS, (M, M). targets: y_T, (N, K). labels: y_S, (M, K).
    """
    duals = torch.linalg.solve(distilled, labels)
    error = targets - cross @ duals
    conditional = distilled - cross.T @ torch.linalg.solve(private, cross)
    return float((error * torch.linalg.solve(private, error)).sum() + (duals * (conditional @ duals)).sum())


class Centered(nn.Module):
    """f_θ − f_θ₀ with θ₀ the parameters at construction: the same kernel, and output 0 (Chizat et al. 2019)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.start = deepcopy(model.state_dict())

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            initial = torch.func.functional_call(self.model, self.start, (images,))
        return self.model(images) - initial


RIDGE = 1e-12  # of kernels in float64


class PredictedSettings(Section):
    """The section `settings` of the experiment's file.

    gaps: by how much the label of a point differs from what the other points predict for it.
    points: how many points of each data set this is done to, one at a time.
    iterations, learning_rate: of the attack.
    """

    gaps: list[float] = Field([0.0, 0.1, 0.5, 1.0, 2.0])
    points: Count = 2
    iterations: Count = 3000
    learning_rate: float = 0.05


def cost(run: ExperimentRun, settings: PredictedSettings) -> float:
    """Return the seconds of an attack per point and gap; training is in closed form."""
    attack = partial(one_point, run.cells[0], 0, settings.gaps[0])
    step = seconds_per_step(lambda steps: attack(settings.model_copy(update={"iterations": steps})))
    return len(run.cells) * settings.points * len(settings.gaps) * step * settings.iterations


def gap_statistics(data: pd.DataFrame) -> Statistics:
    """Compute the dual and the error of the point, by how far its label lies from what the others predict. data: rows
    as of `one_point`."""
    at_0, others = data[data.gap == 0], data.others_dual.mean()
    return {
        "dual": at_0.dual.abs().max(),
        "others_dual": others,
        "relative_dual": at_0.dual.abs().max() / others,
        "formula_error": (data.dual - data.predicted_dual).abs().max() / others,
        "sets": len(data),
        "l2_by_gap": data.groupby("gap").l2.mean(),
        "others_l2": data.others_l2.mean(),
        "floor": data.floor_l2.mean(),
        "worse_than_others": Signs.of(at_0.l2 > at_0.others_l2),
        "l2_at_prediction": at_0.l2.mean(),
        "l2_at_largest_gap": data[data.gap == data.gap.max()].l2.mean(),
    }


def one_point(cell: Cell, point: int, gap: float, settings: PredictedSettings) -> dict[str, float]:
    """Train, linearized and in closed form, with the label of one point moved, and attack the update."""
    owner = Owner.of(cell.scenario).on(choose_device("auto"))
    model = owner.network("appendix_c").double()
    state = deepcopy(model.state_dict())
    images, targets = owner.images.double(), owner.targets.double().clone()
    with torch.no_grad():
        initial = model(images)
    kernel = empirical_ntk(model, state, images)
    others = torch.arange(len(images), device=images.device) != point
    prediction, schur = leave_one_out(kernel, (targets - initial)[:, 0], others)
    targets[point] = initial[point] + prediction + gap
    duals = kernel_duals(kernel, targets - initial, RIDGE)[:, 0]
    final = linearized_update(model, state, images, targets, RIDGE)
    observation = Observation(model, ((state, final),), owner.data.shape)
    mean, std = owner.data.normalization.mean, owner.data.normalization.std or None
    knowledge = Knowledge(num_private=len(images), pixel_mean=mean, pixel_std=std)
    attack = NTKAttack(kernel="initial", iterations=settings.iterations, learning_rate=settings.learning_rate)
    found = attack.run(observation, knowledge, torch_generator(cell.scenario.seed, "appendix_c", point))
    private = images.float().cpu()
    l2, _ = matched_l2(private, found.images)
    public = owner.data.normalization.inputs(owner.data.public()[0])
    return {
        "seed": cell.scenario.seed,
        "num_private": len(images),
        "point": point,
        "gap": gap,
        "dual": float(duals[point]),
        "predicted_dual": gap / schur,
        "others_dual": float(duals[others].abs().mean()),
        "l2": float(l2[point]),
        "others_l2": float(l2[others.cpu().numpy()].mean()),
        "floor_l2": floor_of(private, public, len(found.images)),
    }


def leave_one_out(kernel: Tensor, residual: Tensor, rest: Tensor) -> tuple[float, float]:
    """Return (what training on the rest R adds to the prediction of the point p left out, p's conditional variance).

    They are K_pR K_RR⁻¹ (y_R − f_θ₀(X_R)) and K_pp − K_pR K_RR⁻¹ K_Rp, for one output. residual: (N,), y − f_θ₀. rest:
    (N,), false at the point alone.
    """
    across = kernel[rest][:, ~rest][:, 0]
    weights = torch.linalg.solve(kernel[rest][:, rest], across)
    return float(weights @ residual[rest]), float(kernel[~rest, ~rest] - weights @ across)


@cell_experiment(
    "appendix_c",
    "a point that the others predict has dual 0 and is not reconstructed",
    gap_statistics,
    partial(draw_columns, x="gap", columns=["l2", "others_l2", "floor_l2"], hue="image", y="distance"),
    PredictedSettings,
    cost,
)
def predicted_points(cell: Cell, settings: PredictedSettings) -> list[dict[str, float]]:
    pairs = itertools.product(range(settings.points), settings.gaps)
    return [one_point(cell, point, gap, settings) for point, gap in pairs]
