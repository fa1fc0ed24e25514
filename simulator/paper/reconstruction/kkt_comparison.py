"""Appendix A: beside the attack of Haim et al. (2022), which looks at the final parameters alone."""

from functools import partial

import pandas as pd
import torch

from attacks.interface.devices import cast_state
from attacks.kernel.linearization import relative_residual
from attacks.ntk.objective import squared_norm
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, experiment
from simulator.paper.measures import curve_table, first_seed_strips, score_table, settings_of
from simulator.paper.pictures import draw_curves
from simulator.results.record import Record
from simulator.tools.distillation import Owner

NETWORK = ["loss", "seed", "num_private", "width"]


@experiment("appendix_a", "beside Haim et al.'s attack on the final parameters")
def appendix_a(run: ExperimentRun) -> Outcome:
    record = run.sweep()
    scores, norms = score_table(record), norm_table(record)
    data = curve_table(record, ["loss", "attack"]).merge(norms, on=NETWORK, validate="m:1")
    draw = partial(draw_curves, data, "attack", ["loss"])
    return Outcome(data, kkt_statistics(scores, norms), draw, partial(first_seed_strips, record, scores))


def kkt_statistics(scores: pd.DataFrame, norms: pd.DataFrame) -> Statistics:
    """Both attacks on the same networks, and what the norms of their parameters say. norms: as of `norm_table`."""
    table = scores.pivot_table("l2_mean", NETWORK, "attack")
    means, by_seed = table.groupby("loss").mean(), table.groupby(["loss", "seed"]).mean()
    ratio = norms.initial / norms.delta
    left = norms[norms.loss == "cross_entropy"].unexplained
    return {
        "ntk_l2": means.ntk,
        "kkt_l2": means.kkt,
        "floor": scores.floor_l2_mean.mean(),
        "ntk_better": Signs.of(table.ntk < table.kkt),
        "ntk_better_seeds": Signs.of(by_seed.ntk < by_seed.kkt),
        "norm_ratio": ratio.groupby(norms.loss).mean(),
        "least_norm_ratio": ratio.min(),
        "unexplained": list(left),
        "least_unexplained": left.min(),
        "largest_unexplained": left.max(),
        "networks": len(left),
    }


def norm_table(record: Record) -> pd.DataFrame:
    """‖θ₀‖, ‖Δθ‖ and ‖θ_f‖ of every network, and the share of θ_f that its images' gradients at θ_f leave
    `unexplained` whatever their weights; at a KKT point of the margin it is 0 (Haim et al. 2022, equation 4)."""
    rows = []
    for name, cell in record.cells.items():
        observation, _ = record.observation(1, 0, cell=name)
        states = {"initial": observation.initial, "delta": observation.delta(), "final": observation.final}
        trained, owner = observation.trainable, Owner.of(cell.scenario)
        final = cast_state(observation.final, torch.device("cpu"), torch.float64)
        whole = {part: final[part] for part in trained}
        rows.append(
            {
                **{key: settings_of(cell)[key] for key in NETWORK},
                "unexplained": relative_residual(observation.model, final, whole, owner.images.double()),
                **{key: squared_norm({part: state[part] for part in trained}) ** 0.5 for key, state in states.items()},
            }
        )
    return pd.DataFrame(rows)
