"""Table 1, figures 8 and 9: what distilled sets are worth to learners of finite and of infinite width, by the kernel
that they were distilled with."""

import dataclasses
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from torch import Tensor

from clients.distillation.kernels import KERNELS
from simulator.paper.claims import Statistics
from simulator.paper.distillation import (
    DistillationSettings,
    DistilledSet,
    Method,
    check,
    cost,
    distill_all,
    sheet,
)
from simulator.paper.experiment import ExperimentRun, Outcome, experiment
from simulator.paper.measures import by_seed, spearman_within
from simulator.paper.pictures import draw_lines
from simulator.reports.drawing import themed
from simulator.run.display import ShowProgress
from simulator.tools.distillation import Owner, evaluate

FINITE = ["standard", "linearized"]
LEARNERS = [*FINITE, "infinite_width"]


@experiment(
    "table1", "distillation by KIP, RKIP and RKIP-finite: accuracy of three learners", DistillationSettings, cost
)
def table1(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    data, found = accuracy_table(run, settings, "kip", "rkip", "rkip_finite", references=True)
    draw = partial(draw_bars, data)
    return Outcome(data, set_statistics(data), draw, partial(sheet, found), by_seed(set_statistics, data))


def set_statistics(data: pd.DataFrame) -> Statistics:
    """Of table 1: the accuracy of each learner by the set it learned from, and what it loses at finite width."""
    labelled = data.assign(set=labels(data))
    means = labelled.groupby(["set", "learner"]).accuracy.mean().unstack()
    finite, gaps = means[FINITE].mean(axis=1), gap_table(labelled).groupby("set").gap.mean()
    rkip = finite[finite.index.str.startswith("rkip_") & (finite.index != "rkip_finite")]
    return {
        **{learner: means[learner] for learner in LEARNERS},
        "gap": of_every_kernel(gaps),
        "left_share": left_share(gaps),
        "finite": finite,
        "finite_drop": round(float(rkip.max() - finite["rkip_finite"]), 9),  # a fraction, as bounds are
        "images": data[data.set == "rkip"].train.max(),
        "size": data[data.set == "rkip"]["size"].max(),
    }


def labels(data: pd.DataFrame) -> pd.Series:
    """METHOD_KERNEL of the sets that were distilled with a kernel, else what they are."""
    return data.set.where(~data.set.isin(["kip", "rkip"]), data.set + "_" + data.kernel)


def of_every_kernel(values: pd.Series) -> pd.Series:
    """NaN for a kernel that --set left out."""
    return values.reindex([f"{method}_{kernel}" for method in ("kip", "rkip") for kernel in KERNELS])


def left_share(gaps: pd.Series) -> float:
    """How much of KIP's gap is left with the width-matched kernel, as a share of the smaller of the other two."""
    own = of_every_kernel(gaps)
    return float(own.kip_width_matched / min(own.kip_authors, own.kip_limit))


@experiment("figure8", "distillation: accuracy against the number of distilled images", DistillationSettings, cost)
def figure8(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    data, found = accuracy_table(run, settings, "kip", "rkip")
    draw = partial(draw_accuracy, data, "size")
    return Outcome(data, size_statistics(data), draw, partial(sheet, found), by_seed(size_statistics, data))


def size_statistics(data: pd.DataFrame) -> Statistics:
    """Of figure 8: what each method loses at finite width, by kernel and by the number of distilled images."""
    gaps = gap_table(data.assign(set=labels(data)))
    means = gaps.groupby(["size", "set"]).gap.mean().unstack("set")
    means = means.reindex(columns=of_every_kernel(pd.Series(dtype=float)).index)
    ranks = {name: spearman_within(rows, "size", "gap", ["seed", "train"]) for name, rows in gaps.groupby("set")}
    return {
        **{f"{name}_gap": means[name].dropna() for name in means},
        "rank": of_every_kernel(pd.Series(ranks, dtype=float)),
        "largest": means.index.max(),
        "gap_at_largest": means.loc[means.index.max()],
        "left_share": left_share(means.loc[means.index.max()]),
    }


@experiment("figure9", "distillation: accuracy against the number of training images", DistillationSettings, cost)
def figure9(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    data, found = accuracy_table(run, settings, "kip", "rkip", "rkip_finite", references=True)
    data = data[data.kernel == settings.kernels[0]]
    draw = partial(draw_accuracy, data, "train")
    return Outcome(data, train_statistics(data), draw, partial(sheet, found), by_seed(train_statistics, data))


def train_statistics(data: pd.DataFrame) -> Statistics:
    """Of figure 9: gaps and accuracies by the number of training images, all with one kernel."""
    gaps = gap_table(data).groupby(["set", "train"]).gap.mean().unstack("set")
    finite = data[data.learner.isin(FINITE)].groupby(["set", "train"]).accuracy.mean().unstack("set")
    return {
        "rkip_gap": gaps.rkip,
        "kip_gap": gaps.kip,
        "mean_rkip_gap": gaps.rkip.mean(),
        "mean_kip_gap": gaps.kip.mean(),
        **{name: finite[name] for name in ("rkip", "rkip_finite", "random")},
        "least_distilled": finite[["rkip", "rkip_finite"]].mean().min(),
        "mean_random": finite.random.mean(),
    }


def accuracy_table(
    run: ExperimentRun, settings: DistillationSettings, *methods: Method, references: bool = False
) -> tuple[pd.DataFrame, list[DistilledSet]]:
    """(a row per set and learner: `set`, `kernel`, `size`, `train`, `seed`, `learner`, `accuracy`; the distilled sets).

    The learner of infinite width has the kernel that the set was distilled with, and the first of the settings for sets
    that needed none. methods, references: what the claims compare; InputError, before anything is computed, where
    --set left it out.
    """
    check(run, settings, methods, references)
    rows, found = [], []
    for cell in run.cells:
        owner = Owner.of(cell.scenario)
        own = distill_all(owner, settings, run.report)
        found += own
        for kernel in settings.kernels:
            sets = {f"{one.method}/{one.size}": (one.images, one.targets) for one in own if one.kernel == kernel}
            if settings.references and kernel == settings.kernels[0]:
                sets |= {f"random/{size}": owner.random_subset(min(size, len(owner.images))) for size in settings.sizes}
                sets[f"full/{len(owner.images)}"] = (owner.images, owner.targets)
            common = {"kernel": kernel, "train": len(owner.images), "seed": cell.scenario.seed}
            rows += [common | row for row in evaluated(owner, settings, kernel, sets, run.report)]
    return pd.DataFrame(rows), found


def evaluated(
    owner: Owner,
    settings: DistillationSettings,
    kernel: str,
    sets: dict[str, tuple[Tensor, Tensor]],
    report: ShowProgress,
) -> list[dict[str, object]]:
    """A row for each set, called METHOD/SIZE, and learner."""
    evaluation = owner.evaluation(owner.kernel_named(kernel))
    evaluation = dataclasses.replace(evaluation, ridge=settings.ridge, max_steps=settings.max_steps)
    accuracies, training = evaluate(evaluation, sets, report)
    rows: list[dict[str, object]] = []
    for name, by_learner in accuracies.items():
        kind, size = name.split("/")
        trained = {"train_mse": training[name]["mse"], "steps": training[name]["steps"]}
        common = {"set": kind, "size": int(size), **trained}
        rows += [{**common, "learner": learner, "accuracy": value} for learner, value in by_learner.items()]
    return rows


def gap_table(data: pd.DataFrame) -> pd.DataFrame:
    """`gap`: accuracy at infinite width minus the mean of both finite learners', for each distilled set."""
    table = data.pivot_table("accuracy", ["set", "size", "train", "seed"], "learner")
    return (table.infinite_width - table[FINITE].mean(axis=1)).rename("gap").reset_index()


def draw_bars(data: pd.DataFrame) -> plt.Figure:
    """The accuracy of each learner by set; means over seeds with their range."""
    themed()
    options = {"errorbar": ("pi", 100), "height": 3, "aspect": 2.6}
    return sns.catplot(
        data.assign(set=labels(data)), x="set", y="accuracy", hue="learner", kind="bar", **options
    ).figure


def draw_accuracy(data: pd.DataFrame, x: str) -> plt.Figure:
    """A panel per learner, a line per method and kernel; means over seeds with their range."""
    own = data[data.set != "full"]
    return draw_lines(own.assign(set=labels(own)), x, "accuracy", "set", col="learner", aspect=1)
