"""Distilled sets as experiments need them, and figures 13 and 14: the images of RKIP-finite, private ones of few and
averages of many."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.kernel.infinite import InfiniteNTK
from clients.config import Count, Positive, Section, TrainingConfig
from clients.distillation import DistillOptions
from clients.distillation.kernels import KernelName
from clients.training import train
from simulator.paper.claims import Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, Strip, experiment, num_private, seconds_per_step
from simulator.paper.measures import by_seed, spearman_within
from simulator.paper.pictures import draw_lines
from simulator.run.display import ShowProgress
from simulator.tools.distillation import Owner, loss_bar

Method = Literal["kip", "rkip", "rkip_finite"]
ALIKE = 0.9  # the cosine from which on two images are one
SHOWN = 20  # distilled images of one set, at most, on a sheet


class DistillationSettings(Section):
    """sizes: of the distilled sets. kernels: that KIP and RKIP distill with, and of the learner of infinite width.
    iterations: of KIP and RKIP; finite_iterations: of RKIP-finite. max_steps: limit of standard training, for each set.
    references: whether the full set and random subsets are evaluated beside."""

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
    """method, size. kernel: its name; RKIP-finite needs none and has the first of the settings. owner: whose images
    were distilled. images: (M, C, H, W), in its input space."""

    method: str
    size: int
    kernel: str
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
    total = sets * len(settings.kernels) * seconds_per_step(learn) * settings.max_steps
    for size, method, kernel in itertools.product(settings.sizes, settings.methods, settings.kernels):
        options = settings.options(method, owner.kernel_named(kernel))
        total += seconds_per_step(partial(distill, options, size)) * options.steps
    return total * len(run.cells)


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
    return Outcome(data, likeness_statistics(data), draw, partial(sheet, found), by_seed(likeness_statistics, data))


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


def distill_all(owner: Owner, settings: DistillationSettings, report: ShowProgress) -> list[DistilledSet]:
    """Every method at every size that is no larger than the training set, KIP and RKIP with every kernel."""
    found = []
    for size, method in itertools.product(settings.sizes, settings.methods):
        for name in settings.kernels[:1] if method == "rkip_finite" else settings.kernels:
            if size <= len(owner.images):
                options = settings.options(method, owner.kernel_named(name))
                result = owner.distill(size, options, loss_bar(report, f"{method}/{size}"))
                found.append(DistilledSet(method, size, name, owner, result.images, result.targets))
    return found


def sheet(found: list[DistilledSet]) -> list[Strip]:
    """Every set's images under the private images nearest to them, most alike first."""
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
    """(N, C, H, W) and (M, C, H, W) -> (N, M)."""
    return F.normalize(first.flatten(1), dim=1) @ F.normalize(second.flatten(1), dim=1).T
