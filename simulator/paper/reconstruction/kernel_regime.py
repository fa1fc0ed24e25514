"""Figures 3 and 20: reconstruction error grows with the distance that the kernel travels during training."""

from functools import partial

import pandas as pd

from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, experiment
from simulator.paper.measures import (
    binary_task,
    falling,
    first_seed_strips,
    paired,
    score_table,
    spearman,
    spearman_within,
)
from simulator.paper.pictures import draw_scatter
from simulator.paper.sweeps import score_experiment

COLUMNS = "kernel_distance l2_mean num_private width dynamics seed".split()
draw = partial(draw_scatter, x="kernel_distance", y="l2_mean")


@score_experiment(
    "figure3",
    "kernel distance against reconstruction error, two classes",
    lambda record: score_table(record)[COLUMNS],
    partial(draw, style="dynamics"),
)
def regime_statistics(scores: pd.DataFrame) -> Statistics:
    """How error and kernel distance of networks under standard training go together, and with width and images."""
    trained = scores[scores.dynamics == "standard"]
    larger = falling(trained, "num_private", "kernel_distance", ["width", "seed"])
    return {
        "rank": spearman(trained, "kernel_distance", "l2_mean"),
        "rank_within": spearman_within(trained, "kernel_distance", "l2_mean", ["num_private"]),
        "networks": len(trained),
        "distances": [trained.kernel_distance.min(), trained.kernel_distance.max()],
        "errors": [trained.l2_mean.min(), trained.l2_mean.max()],
        "wider_falls": falling(trained, "width", "kernel_distance", ["num_private", "seed"]),
        "larger_rises": Signs(larger.total - larger.count, larger.total),
    }


@experiment("figure20", "kernel distance against error, ten classes beside two")
def figure20(run: ExperimentRun) -> Outcome:
    record = run.sweep()
    scores = score_table(record)
    own, data = scores[scores.task == "classes"], scores[[*COLUMNS, "task"]]
    sheet = partial(first_seed_strips, record, own)
    return Outcome(data, task_statistics(scores), partial(draw, data, style="task"), sheet)


def task_statistics(scores: pd.DataFrame) -> Statistics:
    """Figure 3's statistics with all classes, and kernel distances of pairs that differ in the task alone."""
    pair = ["num_private", "width", "dynamics", "seed"]
    pairs = paired(scores, "task", "classes", binary_task(scores), "kernel_distance", pair)
    return {
        **regime_statistics(scores[scores.task == "classes"]),
        "classes_distance": pairs.better.max(),
        "two_groups_distance": pairs.worse.max(),
        "classes_lower": Signs.of(pairs.better < pairs.worse),
    }
