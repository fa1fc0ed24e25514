"""Distilled sets as experiments need them, and figures 13 and 14: the images of RKIP-finite, private ones of few and
averages of many.

Table 1, figures 8 and 9: what distilled sets are worth to learners of finite and of infinite width, by the kernel
that they were distilled with.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.kernel.infinite import InfiniteNTK
from clients.config import Count, Positive, Section, TrainingConfig
from clients.distillation import DistillOptions
from clients.distillation.evaluation import KERNELS, KernelName
from clients.training import train
from simulator.paper.claims import Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, Strip, experiment, num_private, seconds_per_step
from simulator.paper.measures import draw_columns, draw_lines, spearman_within
from simulator.reports.drawing import themed
from simulator.results.disk import write_atomically
from simulator.run.display import ShowProgress, loss_bar
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner, evaluate

Method = Literal["kip", "rkip", "rkip_finite"]
ALIKE = 0.9  # the cosine from which on two images are one
SHOWN = 20  # distilled images of one set, at most, on a sheet


class DistillationSettings(Section):
    """The section `settings` of the experiment's file.

    sizes: of the distilled sets.
    kernels: that KIP and RKIP distill with, and of the learner of infinite width.
    iterations: of KIP and RKIP.
    finite_iterations: of RKIP-finite.
    max_steps: limit of standard training, for each set.
    references: whether the full set and random subsets are evaluated beside.
    """

    methods: list[Method] = Field(["kip", "rkip", "rkip_finite"])
    kernels: list[KernelName] = Field(["limit"], min_length=1)
    sizes: list[Count] = Field([20])
    iterations: Count = 50_000
    finite_iterations: Count = 80_000
    learning_rate: Positive = 1e-3
    ridge: Positive = 1e-5
    max_steps: Count = 10_000
    references: bool = True

    def options(self, method: Method, kernel: InfiniteNTK) -> DistillOptions:
        iterations = self.finite_iterations if method == "rkip_finite" else self.iterations
        return DistillOptions(method, iterations, self.learning_rate, self.ridge, kernel=kernel)


class DistilledSet(NamedTuple):
    """method, size.

    kernel: its name; RKIP-finite needs none and has the first of the settings.
    owner: whose images were distilled.
    images: (M, C, H, W), in its input space.
    """

    method: str
    size: int
    kernel: str
    owner: Owner
    images: Tensor
    targets: Tensor


def cost(run: ExperimentRun, settings: DistillationSettings) -> float:
    """Return the seconds of every method at every size, from as few steps as can be timed, and of standard training."""
    owner = Owner.of(max(run.cells, key=num_private).scenario)

    def distill(options: DistillOptions, size: int, steps: int) -> None:
        owner.distill(min(size, len(owner.images)), dataclasses.replace(options, iterations=steps))

    def learn(steps: int) -> None:
        training = TrainingConfig(loss="mse", learning_rate=1e-3, steps=steps)
        train(owner.network("evaluation"), owner.images, owner.targets, training, torch.Generator())

    sets = len(settings.sizes) * (len(settings.methods) + settings.references) + settings.references
    total = sets * len(settings.kernels) * seconds_per_step(learn) * settings.max_steps
    for size, method, kernel in itertools.product(settings.sizes, settings.methods, settings.kernels):
        options = settings.options(method, owner.kernel_named(kernel))
        total += seconds_per_step(partial(distill, options, size)) * options.steps
    return total * len(run.cells)


def likeness_statistics(data: pd.DataFrame) -> Statistics:
    """Count the distilled images that are private ones, and tell how alike they are to private images and to means of
    classes, by the number of private images.

    data: rows as of `likeness`, with `train` (the number of private images) and `seed`.
    """
    by_train = data.groupby("train")
    nearest, average = by_train.nearest.median(), by_train.average.median()
    single = by_train.nearest.apply(lambda values: float((values >= ALIKE).mean()))
    medians = data.groupby(["train", "seed"], as_index=False).nearest.median()
    few, many = nearest.index.min(), nearest.index.max()
    return {
        "alike": ALIKE,
        "few": few,
        "many": many,
        "share": single,
        "share_of_few": single[few],
        "share_of_many": single[many],
        "rank": spearman_within(medians, "train", "nearest", ["seed"]),
        "average": average,
        "average_of_few": average[few],
        "average_of_many": average[many],
        "nearest": nearest,
    }


COSTED = DistillationSettings, cost
draw_likeness = partial(draw_columns, x="train", columns=["nearest", "average"], hue="compared with", y="cosine")
LIKENESS = likeness_statistics, draw_likeness, *COSTED


@experiment("figure13", "images of RKIP-finite by the number of training images", *LIKENESS)
@experiment("figure14", "images of RKIP-finite by the number of training images, CIFAR-10", *LIKENESS)
def distilled_images(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    parts, found = [], []
    for cell in run.cells:
        owner = Owner.of(cell.scenario)
        own = distill_all(owner, settings, run.report)
        train, seed = len(owner.images), cell.scenario.seed
        parts += [likeness(owner, one.images).assign(train=train, size=len(one.images), seed=seed) for one in own]
        found += own
    return Outcome(pd.concat(parts, ignore_index=True), partial(sheet, found))


def likeness(owner: Owner, images: Tensor) -> pd.DataFrame:
    """Return for every distilled image the largest |cosine| to a private one, and to the mean image of a class.

    Images are those of the input space, which is centered. An image with a negative dual stands for its negative.
    """
    images, private = images.double(), owner.images.double()
    to_private = cosines(images, private).abs()
    means = torch.stack([private[owner.groups == group].mean(0) for group in owner.groups.unique()])
    to_means = cosines(images, means).abs()
    return pd.DataFrame({"nearest": to_private.amax(1).numpy(), "average": to_means.amax(1).numpy()})


def check(run: ExperimentRun, settings: DistillationSettings, methods: Sequence[Method], references: bool) -> None:
    """Raise InputError if --set left out what the claims compare."""
    missing = [method for method in methods if method not in settings.methods]
    if missing:
        raise InputError(f"{run.name} compares {', '.join(methods)}: settings.methods leaves {missing[0]} out")
    if references and not settings.references:
        raise InputError(f"{run.name} compares with random images: settings.references has to be true")
    images = min(num_private(cell) for cell in run.cells)
    if min(settings.sizes) > images:
        raise InputError(f"settings.sizes starts at {min(settings.sizes)}, there are {images} images: lower it")


def distill_all(owner: Owner, settings: DistillationSettings, report: ShowProgress) -> list[DistilledSet]:
    """Distill by every method at every size up to that of the training set, by KIP and RKIP with every kernel."""
    found = []
    for size, method in itertools.product(settings.sizes, settings.methods):
        for name in settings.kernels[:1] if method == "rkip_finite" else settings.kernels:
            if size <= len(owner.images):
                options = settings.options(method, owner.kernel_named(name))
                result = owner.distill(size, options, loss_bar(report, f"{method}/{size}"))
                found.append(DistilledSet(method, size, name, owner, result.images, result.targets))
    return found


def sheet(found: list[DistilledSet]) -> list[Strip]:
    """Show every set's images below the private images nearest to them, most alike first."""
    strips = []
    for one in found:
        owner, images = one.owner, one.images
        table = cosines(images.double(), owner.images.double()).abs()
        order = table.max(1).values.argsort(descending=True)[:SHOWN]
        private, guesses = owner.images[table[order].argmax(1)], images[order]
        l2 = (private - guesses).flatten(1).norm(dim=1).numpy()
        title = f"{one.method}/{one.size} ({one.kernel}), {len(owner.images)} images"
        pixels = owner.data.normalization.pixels
        strips.append(Strip(title, pixels(private).clamp(0, 1), pixels(guesses).clamp(0, 1), l2))
    return strips


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosines (N, M) of images (N, C, H, W) and (M, C, H, W)."""
    return F.normalize(first.flatten(1), dim=1) @ F.normalize(second.flatten(1), dim=1).T


FINITE = ["standard", "linearized"]
LEARNERS = [*FINITE, "infinite_width"]


def set_statistics(data: pd.DataFrame) -> Statistics:
    """Compute for table 1 the accuracy of each learner by the set it learned from, and its loss at finite width."""
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
    """Return METHOD_KERNEL for the sets that were distilled with a kernel, else the set's own name."""
    return data.set.where(~data.set.isin(["kip", "rkip"]), data.set + "_" + data.kernel)


def of_every_kernel(values: pd.Series) -> pd.Series:
    """Return a value for each method and kernel, NaN for a kernel that --set left out."""
    return values.reindex([f"{method}_{kernel}" for method in ("kip", "rkip") for kernel in KERNELS])


def left_share(gaps: pd.Series) -> float:
    """Return how much of KIP's gap the width-matched kernel leaves, as a share of the smaller of the other two gaps."""
    own = of_every_kernel(gaps)
    return float(own.kip_width_matched / min(own.kip_authors, own.kip_limit))


def size_statistics(data: pd.DataFrame) -> Statistics:
    """Compute for figure 8 what each method loses at finite width, by kernel and by the number of distilled images."""
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


def train_statistics(data: pd.DataFrame) -> Statistics:
    """Compute for figure 9 gaps and accuracies by the number of training images, all with one kernel."""
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
) -> Outcome:
    """Return a row per set and learner: `set`, `kernel`, `size`, `train`, `seed`, `learner`, `accuracy`.

    The learner of infinite width has the kernel that the set was distilled with; for a set that needed none, the first
    of the settings. methods, references: what the claims compare; raise InputError, before anything is computed, if
    --set left it out. Cells that are done are kept below the run's folder, without the images of their sets.
    """
    check(run, settings, methods, references)
    tables, found = list[pd.DataFrame](), list[DistilledSet]()
    for cell in run.cells:
        done = run.out / "cells" / f"{cell.name or 'all'}.csv"  # 5 minutes and more each: the same command goes on
        if not done.exists():
            rows, sets = cell_accuracies(run, settings, cell)
            found += sets
            done.parent.mkdir(exist_ok=True)
            write_atomically(done, pd.DataFrame(rows).to_csv(index=False))
        tables.append(pd.read_csv(done))
    return Outcome(pd.concat(tables, ignore_index=True), partial(sheet, found))


def cell_accuracies(
    run: ExperimentRun, settings: DistillationSettings, cell: Cell
) -> tuple[list[dict[str, object]], list[DistilledSet]]:
    """Return (the rows of one cell of the sweep, the sets that were distilled for them)."""
    owner = Owner.of(cell.scenario)
    own = distill_all(owner, settings, run.report)
    rows: list[dict[str, object]] = []
    for kernel in settings.kernels:
        sets = {f"{one.method}/{one.size}": (one.images, one.targets) for one in own if one.kernel == kernel}
        if settings.references and kernel == settings.kernels[0]:
            sets |= {f"random/{size}": owner.random_subset(min(size, len(owner.images))) for size in settings.sizes}
            sets[f"full/{len(owner.images)}"] = (owner.images, owner.targets)
        learners = owner.learners(owner.kernel_named(kernel), settings.max_steps, settings.ridge)
        accuracies, training = evaluate(learners, sets, run.report)
        for name, by_learner in accuracies.items():
            kind, size = name.split("/")
            trained = {"train_mse": training[name]["mse"], "steps": training[name]["steps"]}
            common: dict[str, object] = {"kernel": kernel, "train": len(owner.images), "seed": cell.scenario.seed}
            common |= {"set": kind, "size": int(size), **trained}
            rows += [{**common, "learner": learner, "accuracy": value} for learner, value in by_learner.items()]
    return rows, own


def gap_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return for each distilled set `gap`: the accuracy at infinite width minus the mean of both finite learners."""
    table = data.pivot_table("accuracy", ["set", "size", "train", "seed"], "learner")
    return (table.infinite_width - table[FINITE].mean(axis=1)).rename("gap").reset_index()


def draw_bars(data: pd.DataFrame) -> plt.Figure:
    """Draw the accuracy of each learner by set: means over seeds with their range."""
    themed()
    options = {"errorbar": ("pi", 100), "height": 3, "aspect": 2.6}
    return sns.catplot(
        data.assign(set=labels(data)), x="set", y="accuracy", hue="learner", kind="bar", **options
    ).figure


def draw_accuracy(data: pd.DataFrame, x: str) -> plt.Figure:
    """Draw a panel per learner, a line per method and kernel: means over seeds with their range."""
    own = data[data.set != "full"]
    return draw_lines(own.assign(set=labels(own)), x, "accuracy", "set", col="learner", aspect=1)


BY_SET = set_statistics, draw_bars, *COSTED
BY_SIZE = size_statistics, partial(draw_accuracy, x="size"), *COSTED
BY_TRAIN = train_statistics, partial(draw_accuracy, x="train"), *COSTED


@experiment("table1", "distillation by KIP, RKIP and RKIP-finite: accuracy of three learners", *BY_SET)
def table1(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    return accuracy_table(run, settings, "kip", "rkip", "rkip_finite", references=True)


@experiment("figure8", "distillation: accuracy against the number of distilled images", *BY_SIZE)
def figure8(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    return accuracy_table(run, settings, "kip", "rkip")


@experiment("figure9", "distillation: accuracy against the number of training images", *BY_TRAIN)
def figure9(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    only = settings.model_copy(update={"kernels": settings.kernels[:1]})
    return accuracy_table(run, only, "kip", "rkip", "rkip_finite", references=True)
