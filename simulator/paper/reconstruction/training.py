"""Figures 15, 16 and 23 and appendix G.2: training that stops early, and training under cross-entropy."""

import pandas as pd

from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import at_most, listed, paired, score_table, seeds, spearman_within, strips
from simulator.paper.pictures import draw_lines
from simulator.paper.sweeps import curve_experiment

SETTING = ["num_private", "width", "seed"]
STOPPING_COLUMNS = (
    "stop_at_loss l2_mean floor_l2_mean kernel_distance num_private width dynamics seed steps train_loss"
).split()


@experiment("figure15", "early stopping: error against the loss at the stop")
def figure15(job: Job) -> Result:
    record = job.sweep()
    scores = score_table(record)
    data, first = scores[STOPPING_COLUMNS], scores[scores.seed == scores.seed.min()]
    return Result(
        data,
        stopping_claims(scores, "appendix G.1, figure 15"),
        lambda path: draw_lines(data, path, "stop_at_loss", "l2_mean", "width", "num_private", log=True),
        lambda: strips(record, first),
    )


@curve_experiment(
    "figure16",
    "early stopping: curves for one number of images",
    "appendix G.1, figure 16",
    hue="stop_at_loss",
    column="num_private",
    row=["width"],
    extra=["stop_at_loss"],
)
@curve_experiment(
    "figure23",
    "early stopping: curves for several numbers of images",
    "appendix J.5, figure 23",
    hue="stop_at_loss",
    column="num_private",
    row=["width"],
    extra=["stop_at_loss"],
)
def stopping_claims(scores: pd.DataFrame, source: str) -> list[Claim]:
    early, late = scores.stop_at_loss.max(), scores.stop_at_loss.min()
    pairs = paired(scores, "stop_at_loss", early, late, "l2_mean", SETTING)
    means = pairs.groupby("seed").mean()
    first = scores[scores.stop_at_loss == early]
    beaten = float((first.l2_mean < first.floor_l2_mean).mean())
    by_stop = scores.groupby("stop_at_loss")
    moved = spearman_within(scores, "stop_at_loss", "kernel_distance", SETTING)
    return [
        Claim(
            "the attack needs no convergence",
            source,
            "the attack works on networks that are stopped early",
            f"stopped at a loss of {early:g}: mean L2 {first.l2_mean.mean():.2f}, floor "
            f"{first.floor_l2_mean.mean():.2f}, below it in {beaten:.0%} of {len(first)} networks; holds at 100 %",
            beaten == 1,
        ),
        Claim(
            "early stopping improves reconstruction",
            source,
            "early stopping in general improves reconstruction quality",
            f"mean L2 by loss at the stop: {listed(by_stop.l2_mean.mean())}; holds where it is lower at {early:g} than "
            f"at {late:g} in each of {seeds(scores)}",
            bool((means.better < means.worse).all()),
        ),
        Claim(
            "early in training the kernel has moved less",
            source,
            "there is less time for the kernel to evolve (given as a possible reason)",
            f"kernel distance by loss at the stop: {listed(by_stop.kernel_distance.mean(), 4)}; Spearman {moved:.2f}; "
            "holds from -0.8 down",
            at_most(moved, -0.8),
        ),
    ]


@curve_experiment(
    "appendix_g",
    "cross-entropy beside squared error",
    "appendix G.2",
    hue="loss",
    column="num_private",
    row=["width"],
    extra=["loss"],
)
def loss_claims(scores: pd.DataFrame, source: str) -> list[Claim]:
    own, squared = scores[scores.loss == "cross_entropy"], scores[scores.loss == "mse"]
    beaten = float((own.l2_mean < own.floor_l2_mean).mean())
    return [
        Claim(
            "the attack works under cross-entropy",
            source,
            "there is no closed form, but the update still is a linear combination of tangent features",
            f"mean L2 {own.l2_mean.mean():.2f}, floor {own.floor_l2_mean.mean():.2f}, below it in {beaten:.0%} of "
            f"{len(own)} networks, {seeds(own)}; squared error: {squared.l2_mean.mean():.2f}; holds at 100 %",
            beaten == 1,
        )
    ]
