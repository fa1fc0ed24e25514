"""Figures 3 and 20: reconstruction error grows with the distance that the kernel travels during training."""

from pathlib import Path

import pandas as pd

from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import (
    Steps,
    at_least,
    at_most,
    binary_task,
    paired,
    score_table,
    seeds,
    spearman,
    spearman_within,
    strips,
)
from simulator.paper.pictures import draw_scatter

COLUMNS = "kernel_distance l2_mean num_private width dynamics seed".split()
STRONG = 0.8  # the rank correlation from which on we call it strong


@experiment("figure3", "kernel distance against reconstruction error, two classes")
def figure3(job: Job) -> Result:
    record = job.sweep()
    scores = score_table(record)
    claims = regime_claims(scores, "section 4, figure 3")
    data = scores[COLUMNS]
    return Result(
        data, claims, lambda path: draw(data, path), lambda: strips(record, scores[scores.seed == scores.seed.min()])
    )


@experiment("figure20", "kernel distance against error, ten classes beside two")
def figure20(job: Job) -> Result:
    record = job.sweep()
    scores = score_table(record)
    source = "appendix J.3, figure 20"
    own = scores[scores.task == "classes"]
    pairs = paired(
        scores, "task", "classes", binary_task(scores), "kernel_distance", ["num_private", "width", "dynamics", "seed"]
    )
    lower = float((pairs.better < pairs.worse).mean())
    claim = Claim(
        "more classes keep the kernel closer to where it was",
        source,
        "up to 1e-2 (MNIST) and 2e-2 (CIFAR-10) with ten classes, 3e-2 and 9e-2 with two",
        f"up to {pairs.better.max():.4f} with all classes, {pairs.worse.max():.4f} with two; lower in {lower:.0%} of "
        f"{len(pairs)} pairs, {seeds(scores)}; holds from 80 % on",
        lower >= 0.8,
    )
    data = scores[[*COLUMNS, "task"]]
    first = own[own.seed == own.seed.min()]
    return Result(
        data,
        [claim, *regime_claims(own, source)],
        lambda path: draw_scatter(data, path, "kernel_distance", "l2_mean", "width", "num_private", "task"),
        lambda: strips(record, first),
    )


def draw(data: pd.DataFrame, path: Path) -> None:
    draw_scatter(data, path, "kernel_distance", "l2_mean", "width", "num_private", "dynamics")


def regime_claims(scores: pd.DataFrame, source: str) -> list[Claim]:
    """Of standard training; scores as of `score_table`."""
    trained = scores[scores.dynamics == "standard"]
    rank = spearman(trained, "kernel_distance", "l2_mean")
    within = spearman_within(trained, "kernel_distance", "l2_mean", ["num_private"])
    wider = Steps.of(trained, "width", "kernel_distance", ["num_private", "seed"])
    larger = Steps.of(trained, "num_private", "kernel_distance", ["width", "seed"])
    distances = trained.kernel_distance
    return [
        Claim(
            "the more the kernel moves, the worse the reconstruction",
            source,
            "reconstruction quality is strongly correlated with kernel distance",
            f"Spearman {rank:.2f} over {len(trained)} networks, {seeds(trained)}, and {within:.2f} within each number "
            f"of images; kernel distances {distances.min():.4f} to {distances.max():.4f}, errors "
            f"{trained.l2_mean.min():.2f} to {trained.l2_mean.max():.2f}; the first holds from {STRONG} on",
            at_least(rank, STRONG),
        ),
        Claim(
            "wider networks have a lower kernel distance",
            source,
            "smaller data sets and wider models have a lower kernel distance",
            f"falls in {wider.down} of {wider.count} steps to the next width; holds in 80 % of them",
            at_least(wider.share, 0.8),
        ),
        Claim(
            "smaller data sets have a lower kernel distance",
            source,
            "smaller data sets and wider models have a lower kernel distance",
            f"rises in {larger.count - larger.down} of {larger.count} steps to the next number of images; holds in "
            "80 % of them",
            at_most(larger.share, 0.2),
        ),
    ]
