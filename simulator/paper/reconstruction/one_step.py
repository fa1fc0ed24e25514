"""The end of appendix G.1: in the limit of a single gradient step the attack is gradient leakage."""

import numpy as np
import pandas as pd
import torch

from attacks.kernel.linearization import relative_residual
from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import at_least, curve_table, score_table, seeds, strips
from simulator.paper.pictures import draw_curves
from simulator.results.keys import Client, ObservationKey
from simulator.results.record import Record
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner

SOURCE = "appendix G.1"


@experiment("one_step", "a single gradient step: the attack is gradient leakage")
def one_step(job: Job) -> Result:
    record = job.sweep()
    scores = score_table(record)
    steps = pd.DataFrame([step_table(cell, record) for cell in record.cells.values()])
    duals = pd.concat([dual_pairs(cell, record) for cell in record.cells.values()], ignore_index=True)
    own = duals[duals.recovered]
    agree = float(own.found.corr(own.residual)) if len(own) > 2 else float("nan")
    below = float((scores.l2_mean < scores.floor_l2_mean).mean())
    claims = [
        Claim(
            "the update of one step is a gradient",
            SOURCE,
            "in the limit of a single gradient step, the attack corresponds to gradient leakage (Zhu et al. 2019)",
            f"‖Δθ − (η/N) Σ_j (y_j − f_θ₀(x_j)) ∇f_θ₀(x_j)‖ / ‖Δθ‖ at most {steps.unexplained.max():.1e} over "
            f"{len(steps)} networks, {seeds(scores)}; holds to 1e-3 (checkpoints are float32)",
            bool(steps.unexplained.max() <= 1e-3),
        ),
        Claim(
            "the attack finds the images of a gradient",
            SOURCE,
            "the attack works at any time of training, early stopping in general improves it",
            f"mean L2 {scores.l2_mean.mean():.2f}, floor {scores.floor_l2_mean.mean():.2f}, below it in {below:.0%} of "
            f"{len(scores)} networks; {scores.recovered_fraction.mean():.0%} of the images recovered; holds at 100 %",
            below == 1,
        ),
        Claim(
            "the duals it finds are the residuals of the step",
            SOURCE,
            "α_j = (η/N)(y_j − f_θ₀(x_j))",
            f"Pearson correlation {agree:.3f} over the {len(own)} of {len(duals)} images recovered; holds from 0.9 on",
            at_least(agree, 0.9),
        ),
    ]
    data = curve_table(record)
    return Result(
        data,
        claims,
        lambda path: draw_curves(data, path, "width", "num_private", ["dynamics"]),
        lambda: strips(record, scores[scores.seed == scores.seed.min()]),
    )


def step_table(cell: Cell, record: Record) -> dict[str, object]:
    """How much of Δθ the gradient of the mean loss leaves unexplained."""
    observation, _ = record.observation(1, 0, cell=cell.name)
    owner = Owner.of(cell.scenario)
    state, final = ({name: v.double() for name, v in ends.items()} for ends in (observation.initial, observation.final))
    delta = {name: final[name] - state[name] for name in observation.trainable}
    model, duals = observation.model.double(), step_duals(cell, record)
    return {"cell": cell.name, "unexplained": relative_residual(model, state, delta, owner.images.double(), duals)}


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
    path = record.store(cell.name).reconstruction_path(ObservationKey(1, Client(0), "server"), attack)
    with np.load(path, allow_pickle=False) as arrays:
        found = arrays["duals"][0, own.match.to_numpy(), 0]
    return pd.DataFrame(
        {
            "cell": cell.name,
            "residual": step_duals(cell, record)[:, 0].numpy(),
            "found": found,
            "recovered": (own.identified & (own.psnr >= 20)).to_numpy(),
        }
    )
