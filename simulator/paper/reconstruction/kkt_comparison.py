"""Appendix A: beside the attack of Haim et al. (2022), which looks at the final parameters alone."""

import pandas as pd
import torch

from attacks.interface.devices import cast_state
from attacks.interface.observation import State
from attacks.kernel.linearization import relative_residual
from attacks.ntk.objective import squared_norm
from clients.models import option_values
from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import curve_table, score_table, seeds, strips
from simulator.paper.pictures import draw_curves
from simulator.results.record import Record
from simulator.tools.distillation import Owner

SOURCE = "appendix A"
HALF = 0.5  # of ‖θ_f‖ that the private images' own gradients leave over: as far from a KKT point as that


@experiment("appendix_a", "beside Haim et al.'s attack on the final parameters")
def appendix_a(job: Job) -> Result:
    record = job.sweep()
    scores = score_table(record)
    table = scores.pivot_table("l2_mean", ["loss", "seed", "num_private", "width"], "attack")
    means, by_seed = table.groupby("loss").mean(), table.groupby(["loss", "seed"]).mean()
    listed = "; ".join(f"{loss}: {row.ntk:.2f} against {row.kkt:.2f}" for loss, row in means.iterrows())
    norms = norm_table(record)
    weight = (norms.initial / norms.delta).groupby(norms.loss)
    left = norms[norms.loss == "cross_entropy"].unexplained
    claims = [
        Claim(
            "with the initialization at hand the attack is better",
            SOURCE,
            "MNIST, width 1024: significantly better until image index 50, from where on both perform poorly",
            f"mean L2 {listed}; floor {scores.floor_l2_mean.mean():.2f}; better in "
            f"{(table.ntk < table.kkt).mean():.0%} of {len(table)} networks, {seeds(scores)}; holds where the mean is "
            "lower for each loss in each seed",
            bool((by_seed.ntk < by_seed.kkt).all()),
        ),
        Claim(
            "the initialization still weighs in the final parameters",
            SOURCE,
            "‖θ₀‖ contributes a significant amount to the final parameters",
            f"‖θ₀‖ / ‖Δθ‖ {', '.join(f'{loss}: {value:.1f}' for loss, value in weight.mean().items())}, at least "
            f"{weight.min().min():.1f}; holds where it is above 1 in every network",
            bool(weight.min().min() > 1),
        ),
        Claim(
            "the KKT condition is not reached",
            SOURCE,
            "often not reached in practice",
            f"‖θ_f − Σ_j λ_j ∇f(x_j)‖ / ‖θ_f‖ with the private images and their best λ {left.min():.3f} to "
            f"{left.max():.3f} over {len(left)} networks under cross-entropy, which are homogeneous, {seeds(norms)}; "
            f"holds where all are above {HALF}",
            bool((left > HALF).all()) if len(left) else None,
        ),
    ]
    data = curve_table(record, ["loss", "attack"])
    data = data.merge(norms, on=["loss", "seed", "num_private", "width"], validate="m:1")
    return Result(
        data,
        claims,
        lambda path: draw_curves(data, path, "attack", "num_private", ["loss"]),
        lambda: strips(record, scores[scores.seed == scores.seed.min()]),
    )


def norm_table(record: Record) -> pd.DataFrame:
    """‖θ₀‖, ‖Δθ‖ and ‖θ_f‖ of every network, and the share of θ_f that its images' gradients at θ_f leave
    `unexplained`, whatever their weights: a KKT point of the margin has none (Haim et al. 2022, equation 4)."""
    rows = []
    for name, cell in record.cells.items():
        observation, _ = record.observation(1, 0, cell=name)
        states = {"initial": observation.initial, "delta": observation.delta(), "final": observation.final}
        trained, owner = observation.trainable, Owner.of(cell.scenario)
        final = cast_state(observation.final, torch.device("cpu"), torch.float64)
        whole = {part: final[part] for part in trained}
        rows.append(
            {
                "loss": cell.scenario.training.loss,
                "seed": cell.scenario.seed,
                "num_private": cell.scenario.partition.images,
                "width": option_values(cell.scenario.model).get("width", 0),
                "unexplained": relative_residual(observation.model, final, whole, owner.images.double()),
                **{key: norm({part: state[part] for part in trained}) for key, state in states.items()},
            }
        )
    return pd.DataFrame(rows)


def norm(state: State) -> float:
    return squared_norm(state) ** 0.5
