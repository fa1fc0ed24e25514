"""Table 1, figures 8 and 9: what distilled sets are worth to learners of finite and of infinite width."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pandas as pd
import seaborn as sns
import torch
from matplotlib import pyplot as plt
from pydantic import Field
from torch import Tensor

from attacks.interface.attack import Progress, silent
from attacks.interface.errors import InputError
from attacks.interface.seeding import torch_generator
from clients.config import Count, Positive, Section, TrainingConfig
from clients.distillation import Distilled, DistillOptions, distill
from clients.training import train
from simulator.paper.base import Claim, Job, Report, Result, Strip, experiment
from simulator.paper.costs import seconds_per_step
from simulator.paper.measures import at_least, listed, seeds, spearman_within
from simulator.paper.pictures import themed
from simulator.tools.distillation import Owner, evaluate

Method = Literal["kip", "rkip", "rkip_finite"]
FINITE = ["standard", "linearized"]
KEPT = 0.05  # of accuracy: less than that is "almost no drop"


class DistillationSettings(Section):
    """sizes: of the distilled sets. iterations: of KIP and RKIP; finite_iterations: of RKIP-finite. image_steps: limit
    on images times steps of standard training, for each set. references: whether the full set and random subsets are
    evaluated beside."""

    methods: list[Method] = Field(["kip", "rkip", "rkip_finite"])
    sizes: list[Count] = Field([20])
    iterations: Count = 50_000
    finite_iterations: Count = 80_000
    learning_rate: Positive = 1e-3
    ridge: Positive = 1e-5
    image_steps: Count = 100_000
    references: bool = True

    def options(self, method: Method, owner: Owner) -> DistillOptions:
        iterations = self.finite_iterations if method == "rkip_finite" else self.iterations
        return DistillOptions(method, iterations, self.learning_rate, self.ridge, kernel=owner.kernel)


def cost(job: Job) -> float:
    """Every method at every size, for the smallest number of steps that can be timed; and standard training."""
    settings = job.settings(DistillationSettings)
    largest = max(job.scenario.cells(), key=lambda cell: cell.scenario.partition.images_of(0) or 0)
    owner, total = Owner.of(largest.scenario), 0.0
    sizes = {size: min(size, len(owner.images)) for size in settings.sizes}
    for method, size in itertools.product(settings.methods, sizes.values()):
        options = settings.options(method, owner)

        def short(steps: int, options=options, size=size) -> None:
            distill_one(owner, dataclasses.replace(options, iterations=steps), size)

        total += seconds_per_step(short) * options.steps
    sets = len(sizes) * (len(settings.methods) + settings.references) + settings.references

    def learn(steps: int) -> None:
        training = TrainingConfig(loss="mse", learning_rate=1e-3, steps=steps)
        train(owner.network("evaluation"), owner.images, owner.targets, training, torch.Generator())

    total += sets * seconds_per_step(learn) * settings.image_steps / len(owner.images)
    return total * len(job.scenario.cells())


@experiment(
    "table1", "distillation by KIP, RKIP and RKIP-finite: accuracy of three learners", DistillationSettings, cost
)
def table1(job: Job) -> Result:
    compare(job, "kip", "rkip", "rkip_finite", references=True)
    data, pairs = accuracy_table(job)
    means = data.groupby(["set", "learner"]).accuracy.mean().unstack()
    gaps = gap_table(data).groupby("set").gap.mean()
    shown = "; ".join(
        f"{name} {row.standard:.1%} standard, {row.linearized:.1%} linearized, {row.infinite_width:.1%} infinite width"
        for name, row in means.iterrows()
    )
    finite = means[FINITE].mean(axis=1)
    source = "section 7, table 1"
    what = f"{sizes_of(data)}, {seeds(data)}"
    claims = [
        Claim(
            "KIP loses its accuracy at finite width",
            source,
            "91.53 % at infinite width on MNIST odd/even, at finite width not significantly better than a guess",
            f"{shown} ({what}); KIP falls by {gaps['kip']:.1%}; holds from 10 points on",
            bool(gaps["kip"] >= 0.1),
        ),
        Claim(
            "RKIP keeps it",
            source,
            "almost no performance drop",
            f"RKIP falls by {gaps['rkip']:.1%}, KIP by {gaps['kip']:.1%}; holds where RKIP falls by at most "
            f"{KEPT:.0%} and by less than KIP",
            bool(gaps["rkip"] <= KEPT and gaps["rkip"] < gaps["kip"]),
        ),
        Claim(
            "RKIP-finite performs nearly as well as RKIP",
            source,
            "nearly as well, from the information of one finite network",
            f"mean of the finite learners {finite['rkip_finite']:.1%}, RKIP {finite['rkip']:.1%}, random images "
            f"{finite['random']:.1%}, all images {finite['full']:.1%}; holds where it lies at most {KEPT:.0%} below "
            "RKIP and above random images",
            bool(finite["rkip_finite"] >= finite["rkip"] - KEPT and finite["rkip_finite"] > finite["random"]),
        ),
    ]
    return Result(data, claims, lambda path: draw_bars(data, path), lambda: sheet(pairs))


@experiment("figure8", "distillation: accuracy against the number of distilled images", DistillationSettings, cost)
def figure8(job: Job) -> Result:
    compare(job, "kip", "rkip")
    data, pairs = accuracy_table(job)
    gaps = gap_table(data)
    means = gaps.groupby(["set", "size"]).gap.mean()
    kip, rkip = means["kip"], means["rkip"]
    rank = spearman_within(gaps[gaps.set == "kip"], "size", "gap", ["seed", "train"])
    largest = kip.index.max()
    source = "section 7, figure 8"
    claims = [
        Claim(
            "the gap of KIP grows with the number of distilled images",
            source,
            "little to no drop for small distilled sets, a significant one for larger ones",
            f"infinite minus finite accuracy by size: {listed(kip)}; Spearman {rank:.2f}, {seeds(data)}; holds from "
            "0.5 on",
            at_least(rank, 0.5),
        ),
        Claim(
            "RKIP has no such gap",
            source,
            "almost no performance drop",
            f"by size: {listed(rkip)}; holds where at {largest} images it is at most {KEPT:.0%} and below that of KIP",
            bool(rkip[largest] <= KEPT and rkip[largest] < kip[largest]),
        ),
    ]
    return Result(data, claims, lambda path: draw_accuracy(data, path, "size"), lambda: sheet(pairs))


@experiment("figure9", "distillation: accuracy against the number of training images", DistillationSettings, cost)
def figure9(job: Job) -> Result:
    compare(job, "kip", "rkip", "rkip_finite", references=True)
    data, pairs = accuracy_table(job)
    means = gap_table(data).groupby(["set", "train"]).gap.mean().unstack("set")
    finite = data[data.learner.isin(FINITE)].groupby(["set", "train"]).accuracy.mean().unstack("set")
    claims = [
        Claim(
            "RKIP keeps its accuracy at finite width whatever the number of training images",
            "section 7, figure 9",
            "similar results for distilling fewer images, 20 to 500, to 20",
            f"infinite minus finite accuracy by images: RKIP {listed(means.rkip)}; KIP {listed(means.kip)}, "
            f"{seeds(data)}; RKIP falls by at most "
            f"{KEPT:.0%} at every number and by less than KIP in the mean where it holds",
            bool(means.rkip.max() <= KEPT and means.rkip.mean() < means.kip.mean()),
        ),
        Claim(
            "distilled images are worth more than as many random ones",
            "section 7, figure 9",
            "distilled sets accurately approximate the full data set",
            f"mean of the finite learners, RKIP: {listed(finite.rkip)}; RKIP-finite: {listed(finite.rkip_finite)}; "
            f"random: {listed(finite.random)}; holds where both are above random in the mean",
            bool(finite[["rkip", "rkip_finite"]].mean().min() > finite.random.mean()),
        ),
    ]
    return Result(data, claims, lambda path: draw_accuracy(data, path, "train"), lambda: sheet(pairs))


Found = tuple[str, Owner, Distilled]


def compare(job: Job, *methods: Method, references: bool = False) -> None:
    """InputError where --set left out what the claims compare; nothing has been computed yet."""
    settings = job.settings(DistillationSettings)
    missing = [method for method in methods if method not in settings.methods]
    if missing:
        raise InputError(f"{job.name} compares {', '.join(methods)}: settings.methods leaves {missing[0]} out")
    if references and not settings.references:
        raise InputError(f"{job.name} compares with random images: settings.references has to be true")
    train = min(cell.scenario.partition.images_of(0) or 0 for cell in job.scenario.cells())
    if min(settings.sizes) > train:
        raise InputError(f"settings.sizes starts at {min(settings.sizes)}, there are {train} images: lower it")


def accuracy_table(job: Job) -> tuple[pd.DataFrame, list[Found]]:
    """(a row per set and learner: `set`, `size`, `train`, `seed`, `learner`, `accuracy`; the distilled sets)."""
    settings = job.settings(DistillationSettings)
    rows, found = [], []
    for cell in job.scenario.cells():
        owner = Owner.of(cell.scenario)
        own = distill_all(owner, settings, job.report)
        found += own
        sets: dict[str, tuple[Tensor, Tensor]] = {name: (one.images, one.targets) for name, _, one in own}
        if settings.references:
            sets |= {f"random/{size}": owner.random_subset(min(size, len(owner.images))) for size in settings.sizes}
            sets[f"full/{len(owner.images)}"] = (owner.images, owner.targets)
        evaluation = dataclasses.replace(owner.evaluation(), ridge=settings.ridge, image_steps=settings.image_steps)
        accuracies, training = evaluate(evaluation, sets, job.report)
        for name, by_learner in accuracies.items():
            kind, size = name.split("/")
            common = {"set": kind, "size": int(size), "train": len(owner.images), "seed": cell.scenario.seed}
            rows += [
                {**common, "learner": learner, "accuracy": value, "train_mse": training[name]["mse"]}
                for learner, value in by_learner.items()
            ]
    return pd.DataFrame(rows), found


def distill_all(owner: Owner, settings: DistillationSettings, report: Report) -> list[Found]:
    """Every method at every size that is smaller than the training set or as large; named METHOD/SIZE."""
    found = []
    for size in settings.sizes:
        for method in settings.methods:
            if size > len(owner.images):
                continue
            name = f"{method}/{size}"
            one = distill_one(owner, settings.options(method, owner), size, progress_of(report, name))
            found.append((name, owner, one))
    return found


def distill_one(owner: Owner, options: DistillOptions, size: int, progress: Progress = silent) -> Distilled:
    generator = torch_generator(owner.scenario.seed, "distillation")
    network = owner.network("distillation") if options.method == "rkip_finite" else None
    return distill(owner.images, owner.targets, size, generator, options, network, progress=progress)


def progress_of(report: Report, name: str) -> Callable[[int, int, float], None]:
    return lambda done, total, loss: report(f"{name}, loss {loss:.1e}", done, total)


def gap_table(data: pd.DataFrame) -> pd.DataFrame:
    """`gap`: accuracy at infinite width minus the mean of both finite learners', for each distilled set."""
    table = data.pivot_table("accuracy", ["set", "size", "train", "seed"], "learner")
    return (table.infinite_width - table[FINITE].mean(axis=1)).rename("gap").reset_index()


def sizes_of(data: pd.DataFrame) -> str:
    """ "500 images to 20"."""
    own = data[data.set == "rkip"]
    return f"{own.train.max()} images to {own['size'].max()}"


def sheet(found: list[Found]) -> list[Strip]:
    from simulator.paper.distillation.images import strip_of

    return [strip_of(f"{name}, {len(owner.images)} images", owner, one) for name, owner, one in found]


def draw_bars(data: pd.DataFrame, path: Path) -> None:
    themed()
    grid = sns.catplot(
        data, x="set", y="accuracy", hue="learner", kind="bar", errorbar=("pi", 100), height=3, aspect=1.8
    )
    grid.savefig(path, dpi=150)
    plt.close(grid.figure)


def draw_accuracy(data: pd.DataFrame, path: Path, x: str) -> None:
    """A panel per learner, a line per method; means over seeds with their range."""
    themed()
    own = data[data.set != "full"]
    grid = sns.relplot(
        own, x=x, y="accuracy", hue="set", col="learner", kind="line", marker="o", errorbar=("pi", 100), height=3
    )
    grid.savefig(path, dpi=150)
    plt.close(grid.figure)
