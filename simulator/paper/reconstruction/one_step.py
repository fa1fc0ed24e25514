"""The end of appendix G.1: in the limit of a single gradient step the attack is gradient leakage."""

import math
from functools import partial

import numpy as np
import pandas as pd
import torch

from attacks.kernel.linearization import relative_residual
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, experiment
from simulator.paper.measures import curve_table, first_seed_strips, score_table
from simulator.paper.pictures import draw_curves
from simulator.results.keys import ObservationKey
from simulator.results.record import Record
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner


@experiment("one_step", "a single gradient step: the attack is gradient leakage")
def one_step(run: ExperimentRun) -> Outcome:
    record = run.sweep()
    scores = score_table(record)
    duals = pd.concat([dual_pairs(cell, record) for cell in record.cells.values()], ignore_index=True)
    largest = max(unexplained(cell, record) for cell in record.cells.values())
    data, sheet = curve_table(record), partial(first_seed_strips, record, scores)
    statistics = {"unexplained": largest, **step_statistics(scores, duals)}
    return Outcome(data, statistics, partial(draw_curves, data, "width", ["dynamics"]), sheet)


def step_statistics(scores: pd.DataFrame, duals: pd.DataFrame) -> Statistics:
    """How near the images come, and the correlation of the duals of those recovered. duals: rows of `dual_pairs`."""
    own = duals[duals.recovered]
    return {
        "networks": len(scores),
        "l2": scores.l2_mean.mean(),
        "floor": scores.floor_l2_mean.mean(),
        "below_floor": Signs.of(scores.l2_mean < scores.floor_l2_mean),
        "recovered_share": scores.recovered_fraction.mean(),
        "correlation": float(own.found.corr(own.residual)) if len(own) > 2 else math.nan,
        "recovered": len(own),
        "images": len(duals),
    }


def unexplained(cell: Cell, record: Record) -> float:
    """‖Δθ − (η/N) Σ_j (y_j − f_θ₀(x_j)) ∇f_θ₀(x_j)‖ / ‖Δθ‖: what the gradient of the mean loss does not explain."""
    observation, _ = record.observation(1, 0, cell=cell.name)
    owner = Owner.of(cell.scenario)
    state, final = ({name: v.double() for name, v in ends.items()} for ends in (observation.initial, observation.final))
    delta = {name: final[name] - state[name] for name in observation.trainable}
    model, duals = observation.model.double(), step_duals(cell, record)
    return relative_residual(model, state, delta, owner.images.double(), duals)


def step_duals(cell: Cell, record: Record) -> torch.Tensor:
    """η (y_j − f_θ₀(x_j)) / N, (N, 1) in float64."""
    observation, _ = record.observation(1, 0, cell=cell.name)
    owner, model = Owner.of(cell.scenario), observation.model.double()
    state = {name: value.double() for name, value in observation.initial.items()}
    with torch.no_grad():
        outputs = torch.func.functional_call(model, state, (owner.images.double(),))
    return cell.scenario.training.learning_rate * (owner.targets.double() - outputs) / len(outputs)


def dual_pairs(cell: Cell, record: Record) -> pd.DataFrame:
    """A row per private image: its dual in the step, and that of its reconstruction."""
    own = record.samples[record.samples.cell == cell.name].sort_values("image")
    attack = own.attack.iloc[0]
    path = record.store(cell.name).reconstruction_path(ObservationKey(1, 0, "server"), attack)
    with np.load(path, allow_pickle=False) as arrays:
        found = arrays["duals"][0, own.match.to_numpy(), 0]
    recovered = (own.identified & (own.psnr >= 20)).to_numpy()
    return pd.DataFrame({"residual": step_duals(cell, record)[:, 0].numpy(), "found": found, "recovered": recovered})
