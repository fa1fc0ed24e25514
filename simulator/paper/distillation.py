"""Table 1, figures 8 and 9: what distilled sets are worth to learners of finite and of infinite width; figures 13 and
14: the images of RKIP-finite, private ones of few and averages of many."""

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
from clients.config import Count, Positive, Section, TrainingConfig
from clients.distillation import DistillOptions
from clients.training import train
from simulator.paper.claims import Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, Strip, experiment, num_private, seconds_per_step
from simulator.paper.measures import spearman_within
from simulator.paper.pictures import draw_lines
from simulator.reports.figures import themed
from simulator.run.display import ShowProgress
from simulator.tools.distillation import Owner, evaluate, loss_bar

Method = Literal["kip", "rkip", "rkip_finite"]
FINITE = ["standard", "linearized"]
ALIKE = 0.9  # the cosine from which on two images are one
SHOWN = 20  # distilled images of one set, at most, on a sheet


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


class DistilledSet(NamedTuple):
    """name: METHOD/SIZE. owner: whose images were distilled. images: (M, C, H, W), in its input space."""

    name: str
    owner: Owner
    images: Tensor
    targets: Tensor


def cost(run: ExperimentRun, settings: DistillationSettings) -> float:
    """Every method at every size, for the smallest number of steps that can be timed; and standard training."""
    owner = Owner.of(max(run.cells, key=num_private).scenario)

    def distill(options: DistillOptions, size: int, steps: int) -> None:
        owner.distill(min(size, len(owner.images)), dataclasses.replace(options, iterations=steps))

    def learn(steps: int) -> None:
        training = TrainingConfig(loss="mse", learning_rate=1e-3, steps=steps)
        train(owner.network("evaluation"), owner.images, owner.targets, training, torch.Generator())

    sets = len(settings.sizes) * (len(settings.methods) + settings.references) + settings.references
    total = sets * seconds_per_step(learn) * settings.image_steps / len(owner.images)
    for method, size in itertools.product(settings.methods, settings.sizes):
        options = settings.options(method, owner)
        total += seconds_per_step(partial(distill, options, size)) * options.steps
    return total * len(run.cells)


@experiment(
    "table1", "distillation by KIP, RKIP and RKIP-finite: accuracy of three learners", DistillationSettings, cost
)
def table1(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    data, found = accuracy_table(run, settings, "kip", "rkip", "rkip_finite", references=True)
    return Outcome(data, set_statistics(data), partial(draw_bars, data), partial(sheet, found))


def set_statistics(data: pd.DataFrame) -> Statistics:
    """Of table 1: the accuracy of each learner by the set it learned from, and what it loses at finite width."""
    means = data.groupby(["set", "learner"]).accuracy.mean().unstack()
    finite, own = means[FINITE].mean(axis=1), data[data.set == "rkip"]
    return {
        **{learner: means[learner] for learner in ("standard", "linearized", "infinite_width")},
        "gap": gap_table(data).groupby("set").gap.mean(),
        "finite": finite,
        "finite_drop": round(float(finite["rkip"] - finite["rkip_finite"]), 9),  # a fraction, as bounds are
        "images": own.train.max(),
        "size": own["size"].max(),
    }


@experiment("figure8", "distillation: accuracy against the number of distilled images", DistillationSettings, cost)
def figure8(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    data, found = accuracy_table(run, settings, "kip", "rkip")
    gaps = gap_table(data)
    means = gaps.groupby(["set", "size"]).gap.mean()
    largest = means["kip"].index.max()
    statistics = {
        "kip_gap": means["kip"],
        "rkip_gap": means["rkip"],
        "rank": spearman_within(gaps[gaps.set == "kip"], "size", "gap", ["seed", "train"]),
        "largest": largest,
        "kip_gap_at_largest": means["kip"][largest],
        "rkip_gap_at_largest": means["rkip"][largest],
    }
    return Outcome(data, statistics, partial(draw_accuracy, data, "size"), partial(sheet, found))


@experiment("figure9", "distillation: accuracy against the number of training images", DistillationSettings, cost)
def figure9(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    data, found = accuracy_table(run, settings, "kip", "rkip", "rkip_finite", references=True)
    gaps = gap_table(data).groupby(["set", "train"]).gap.mean().unstack("set")
    finite = data[data.learner.isin(FINITE)].groupby(["set", "train"]).accuracy.mean().unstack("set")
    statistics = {
        "rkip_gap": gaps.rkip,
        "kip_gap": gaps.kip,
        "mean_rkip_gap": gaps.rkip.mean(),
        "mean_kip_gap": gaps.kip.mean(),
        **{name: finite[name] for name in ("rkip", "rkip_finite", "random")},
        "least_distilled": finite[["rkip", "rkip_finite"]].mean().min(),
        "mean_random": finite.random.mean(),
    }
    return Outcome(data, statistics, partial(draw_accuracy, data, "train"), partial(sheet, found))


@experiment("figure13", "images of RKIP-finite by the number of training images", DistillationSettings, cost)
@experiment("figure14", "images of RKIP-finite by the number of training images, CIFAR-10", DistillationSettings, cost)
def distilled_images(run: ExperimentRun, settings: DistillationSettings) -> Outcome:
    parts, found = [], []
    for cell in run.cells:
        owner = Owner.of(cell.scenario)
        own = distill_all(owner, settings, run.report)
        train, seed = len(owner.images), cell.scenario.seed
        parts += [likeness(owner, one.images).assign(train=train, size=len(one.images), seed=seed) for one in own]
        found += own
    data = pd.concat(parts, ignore_index=True)
    long = data.melt(["train", "seed"], ["nearest", "average"], "compared with", "cosine")
    draw = partial(draw_lines, long, "train", "cosine", "compared with")
    return Outcome(data, likeness_statistics(data), draw, partial(sheet, found))


def likeness_statistics(data: pd.DataFrame) -> Statistics:
    """How many distilled images are private ones, and how alike they are to images and to class means, by their number.

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


def likeness(owner: Owner, images: Tensor) -> pd.DataFrame:
    """For every distilled image the largest |cosine| to a private one, and the largest to the mean image of a class.

    In the centered input space; of magnitudes, since an image with a negative dual stands for its negative.
    """
    images, private = images.double(), owner.images.double()
    to_private = cosines(images, private).abs()
    means = torch.stack([private[owner.groups == group].mean(0) for group in owner.groups.unique()])
    to_means = cosines(images, means).abs()
    return pd.DataFrame({"nearest": to_private.amax(1).numpy(), "average": to_means.amax(1).numpy()})


def check(run: ExperimentRun, settings: DistillationSettings, methods: Sequence[Method], references: bool) -> None:
    """InputError where --set left out what the claims compare."""
    missing = [method for method in methods if method not in settings.methods]
    if missing:
        raise InputError(f"{run.name} compares {', '.join(methods)}: settings.methods leaves {missing[0]} out")
    if references and not settings.references:
        raise InputError(f"{run.name} compares with random images: settings.references has to be true")
    images = min(num_private(cell) for cell in run.cells)
    if min(settings.sizes) > images:
        raise InputError(f"settings.sizes starts at {min(settings.sizes)}, there are {images} images: lower it")


def accuracy_table(
    run: ExperimentRun, settings: DistillationSettings, *methods: Method, references: bool = False
) -> tuple[pd.DataFrame, list[DistilledSet]]:
    """(a row per set and learner: `set`, `size`, `train`, `seed`, `learner`, `accuracy`; the distilled sets).

    methods, references: what the claims compare; InputError, before anything is computed, where --set left it out.
    """
    check(run, settings, methods, references)
    rows, found = [], []
    for cell in run.cells:
        owner = Owner.of(cell.scenario)
        own = distill_all(owner, settings, run.report)
        found += own
        sets = {name: (images, targets) for name, _, images, targets in own}
        if settings.references:
            sets |= {f"random/{size}": owner.random_subset(min(size, len(owner.images))) for size in settings.sizes}
            sets[f"full/{len(owner.images)}"] = (owner.images, owner.targets)
        evaluation = dataclasses.replace(owner.evaluation(), ridge=settings.ridge, image_steps=settings.image_steps)
        accuracies, training = evaluate(evaluation, sets, run.report)
        for name, by_learner in accuracies.items():
            kind, size = name.split("/")
            common = {"set": kind, "size": int(size), "train": len(owner.images), "seed": cell.scenario.seed}
            rows += [
                {**common, "learner": learner, "accuracy": value, "train_mse": training[name]["mse"]}
                for learner, value in by_learner.items()
            ]
    return pd.DataFrame(rows), found


def distill_all(owner: Owner, settings: DistillationSettings, report: ShowProgress) -> list[DistilledSet]:
    """Every method at every size that is no larger than the training set."""
    found = []
    for size, method in itertools.product(settings.sizes, settings.methods):
        if size <= len(owner.images):
            name = f"{method}/{size}"
            result = owner.distill(size, settings.options(method, owner), loss_bar(report, name))
            found.append(DistilledSet(name, owner, result.images, result.targets))
    return found


def gap_table(data: pd.DataFrame) -> pd.DataFrame:
    """`gap`: accuracy at infinite width minus the mean of both finite learners', for each distilled set."""
    table = data.pivot_table("accuracy", ["set", "size", "train", "seed"], "learner")
    return (table.infinite_width - table[FINITE].mean(axis=1)).rename("gap").reset_index()


def sheet(found: list[DistilledSet]) -> list[Strip]:
    """Every set's images under the private images nearest to them, most alike first."""
    strips = []
    for name, owner, images, _ in found:
        table = cosines(images.double(), owner.images.double()).abs()
        order = table.max(1).values.argsort(descending=True)[:SHOWN]
        mean = images.new_tensor(owner.data.pixel_mean).view(1, -1, 1, 1)
        private, guesses = owner.images[table[order].argmax(1)], images[order]
        l2 = (private - guesses).flatten(1).norm(dim=1).numpy()
        title = f"{name}, {len(owner.images)} images"
        strips.append(Strip(title, (private + mean).clamp(0, 1), (guesses + mean).clamp(0, 1), l2))
    return strips


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """(N, C, H, W) and (M, C, H, W) -> (N, M)."""
    return F.normalize(first.flatten(1), dim=1) @ F.normalize(second.flatten(1), dim=1).T


def draw_bars(data: pd.DataFrame) -> plt.Figure:
    """The accuracy of each learner by set; means over seeds with their range."""
    themed()
    options = {"errorbar": ("pi", 100), "height": 3, "aspect": 1.8}
    return sns.catplot(data, x="set", y="accuracy", hue="learner", kind="bar", **options).figure


def draw_accuracy(data: pd.DataFrame, x: str) -> plt.Figure:
    """A panel per learner, a line per method; means over seeds with their range."""
    return draw_lines(data[data.set != "full"], x, "accuracy", "set", col="learner", aspect=1)
