"""Appendix C as numbers: a point that the others already predict has dual 0, leaves no trace, and cannot be found."""

from copy import deepcopy
from functools import partial

import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from attacks.interface.devices import choose_device
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.seeding import torch_generator
from attacks.kernel.empirical import empirical_ntk, kernel_duals
from attacks.ntk.attack import NTKAttack
from attacks.scoring.images import matched_l2
from clients.config import Count, Section
from clients.distillation.distill import linearized_update
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, experiment, seconds_per_step
from simulator.paper.measures import by_seed, floor_of
from simulator.paper.pictures import draw_lines
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner

RIDGE = 1e-12  # of kernels in float64


class PredictedSettings(Section):
    """gaps: by how much the label of a point differs from what the other points predict for it. points: how many points
    of each data set this is done to, one at a time. iterations, learning_rate: of the attack."""

    gaps: list[float] = Field([0.0, 0.1, 0.5, 1.0, 2.0])
    points: Count = 2
    iterations: Count = 3000
    learning_rate: float = 0.05


def cost(run: ExperimentRun, settings: PredictedSettings) -> float:
    """An attack for each point and gap; its training is in closed form."""
    attack = partial(one_point, run.cells[0], 0, settings.gaps[0])
    step = seconds_per_step(lambda steps: attack(settings.model_copy(update={"iterations": steps})))
    return len(run.cells) * settings.points * len(settings.gaps) * step * settings.iterations


@experiment(
    "appendix_c", "a point that the others predict has dual 0 and is not reconstructed", PredictedSettings, cost
)
def appendix_c(run: ExperimentRun, settings: PredictedSettings) -> Outcome:
    plan = [(cell, point, gap) for cell in run.cells for point in range(settings.points) for gap in settings.gaps]
    rows = []
    for done, (cell, point, gap) in enumerate(plan):
        run.report(f"{cell.name}, point {point}, gap {gap:g}", done, len(plan))
        rows.append(one_point(cell, point, gap, settings))
    data = pd.DataFrame(rows)
    long = data.melt(["gap", "seed"], ["l2", "others_l2", "floor_l2"], "image", "distance")
    draw = partial(draw_lines, long, "gap", "distance", "image")
    return Outcome(data, gap_statistics(data), draw, by_seed=by_seed(gap_statistics, data))


def gap_statistics(data: pd.DataFrame) -> Statistics:
    """The dual and the error of the point, by how far its label lies from what the others predict. data: rows as of
    `one_point`."""
    none, most = data[data.gap == 0], data.gap.max()
    others = data.others_dual.mean()
    return {
        "dual": none.dual.abs().max(),
        "others_dual": others,
        "relative_dual": none.dual.abs().max() / others,
        "formula_error": (data.dual - data.predicted_dual).abs().max() / others,
        "sets": len(data),
        "l2_by_gap": data.groupby("gap").l2.mean(),
        "others_l2": data.others_l2.mean(),
        "floor": data.floor_l2.mean(),
        "worse_than_others": Signs.of(none.l2 > none.others_l2),
        "largest_gap": most,
        "l2_at_prediction": none.l2.mean(),
        "l2_at_largest_gap": data[data.gap == most].l2.mean(),
    }


def one_point(cell: Cell, point: int, gap: float, settings: PredictedSettings) -> dict[str, float]:
    """Linearized training with one label moved, in closed form, and the attack on its update."""
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
    mean, std = owner.data.pixel_mean, owner.data.pixel_std
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
    """(what training on the rest R adds to the prediction of the point N left out, N's conditional variance).

    K_NR K_RR⁻¹ (y_R − f_θ₀(X_R)) and K_NN − K_NR K_RR⁻¹ K_RN, for one output. residual: (N,), y − f_θ₀. rest: (N,),
    false at the point alone.
    """
    across = kernel[rest][:, ~rest][:, 0]
    weights = torch.linalg.solve(kernel[rest][:, rest], across)
    return float(weights @ residual[rest]), float(kernel[~rest, ~rest] - weights @ across)
