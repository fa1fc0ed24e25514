"""Figures 15, 16 and 23 and appendix G.2: training that stops early, and training under cross-entropy."""

from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import curve_table, listed, paired, score_table, seeds, spearman_within, strips
from simulator.paper.pictures import curve_result, draw_lines

SETTING = ["num_private", "width", "seed"]


@experiment("figure15", "early stopping: error against the loss at the stop")
@experiment("figure16", "early stopping: curves for one number of images")
@experiment("figure23", "early stopping: curves for several numbers of images")
def early_stopping(job: Job) -> Result:
    source = {"figure15": "appendix G.1", "figure16": "appendix G.1", "figure23": "appendix J.5"}[job.name]
    source = f"{source}, figure {job.name.removeprefix('figure')}"
    record = job.sweep()
    scores = score_table(record)
    early, late = scores.stop_at_loss.max(), scores.stop_at_loss.min()
    pairs = paired(scores, "stop_at_loss", early, late, "l2_mean", SETTING)
    means = pairs.groupby("seed").mean()
    distances = scores.groupby("stop_at_loss").kernel_distance.mean()
    moved = spearman_within(scores, "stop_at_loss", "kernel_distance", SETTING)
    first = scores[scores.stop_at_loss == early]
    beaten = float((first.l2_mean < first.floor_l2_mean).mean())
    claims = [
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
            f"mean L2 by loss at the stop: {listed(scores.groupby('stop_at_loss').l2_mean.mean())}; holds where it is "
            f"lower at {early:g} than at {late:g} in each of {seeds(scores)}",
            bool((means.better < means.worse).all()),
        ),
        Claim(
            "early in training the kernel has moved less",
            source,
            "there is less time for the kernel to evolve (given as a possible reason)",
            f"kernel distance by loss at the stop: {', '.join(f'{k:g}: {v:.4f}' for k, v in distances.items())}; "
            f"Spearman {moved:.2f}; holds from -0.8 down",
            moved <= -0.8,
        ),
    ]  # fmt: skip
    curves = curve_table(record, ["stop_at_loss"])
    columns = (
        "stop_at_loss l2_mean floor_l2_mean kernel_distance num_private width dynamics seed steps train_loss".split()
    )
    shown = scores[scores.seed == scores.seed.min()]
    if job.name == "figure15":
        data = scores[columns]
        return Result(
            data, claims,
            lambda path: draw_lines(data, path, "stop_at_loss", "l2_mean", "width", "num_private", log=True),
            lambda: strips(record, shown),
        )  # fmt: skip
    return curve_result(record, scores, curves, claims, "stop_at_loss", "num_private", "width")


@experiment("appendix_g", "cross-entropy beside squared error")
def cross_entropy(job: Job) -> Result:
    record = job.sweep()
    scores = score_table(record)
    own = scores[scores.loss == "cross_entropy"]
    beaten = float((own.l2_mean < own.floor_l2_mean).mean())
    claims = [
        Claim(
            "the attack works under cross-entropy",
            "appendix G.2",
            "there is no closed form, but the update still is a linear combination of tangent features",
            f"mean L2 {own.l2_mean.mean():.2f}, floor {own.floor_l2_mean.mean():.2f}, below it in {beaten:.0%} of "
            f"{len(own)} networks, {seeds(own)}; squared error: {scores[scores.loss == 'mse'].l2_mean.mean():.2f}; "
            "holds at 100 %",
            beaten == 1,
        )
    ]
    data = curve_table(record, ["loss"])
    return curve_result(record, scores, data, claims, "loss", "num_private", "width")
