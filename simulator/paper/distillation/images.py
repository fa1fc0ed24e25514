"""Figures 13 and 14: the images of RKIP-finite, private ones of few and averages of many."""

import math

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from clients.distillation import Distilled
from simulator.paper.base import Claim, Job, Result, Strip, experiment
from simulator.paper.distillation.sets import DistillationSettings, cost, distill_all
from simulator.paper.measures import listed, seeds, spearman_within
from simulator.paper.pictures import draw_lines
from simulator.tools.distillation import Owner

SHOWN = 20
ALIKE = 0.9  # the cosine from which on two images are one


@experiment("figure13", "images of RKIP-finite by the number of training images", DistillationSettings, cost)
@experiment("figure14", "images of RKIP-finite by the number of training images, CIFAR-10", DistillationSettings, cost)
def distilled_images(job: Job) -> Result:
    settings = job.settings(DistillationSettings)
    source = f"appendix E, figure {job.name.removeprefix('figure')}"
    parts, strips = [], []
    for cell in job.scenario.cells():
        owner = Owner.of(cell.scenario)
        for name, _, found in distill_all(owner, settings, job.report):
            train, size = len(owner.images), len(found.images)
            common = {"train": train, "size": size, "seed": cell.scenario.seed}
            parts.append(likeness(owner, found).assign(**common))
            strips.append(strip_of(f"{name}, {train} images", owner, found))
    data = pd.concat(parts, ignore_index=True)
    nearest, average = (data.groupby("train")[name].median() for name in ("nearest", "average"))
    few, many = nearest.index.min(), nearest.index.max()
    single = data.groupby("train").nearest.apply(lambda values: float((values >= ALIKE).mean()))
    medians = data.groupby(["train", "seed"], as_index=False).nearest.median()
    rank = spearman_within(medians, "train", "nearest", ["seed"])
    claims = [
        Claim(
            "of many images, few of those reconstructed are training images",
            source,
            "with few exceptions the images are no items of the training set (20 of 500)",
            f"share with a cosine of {ALIKE} to a training image, by their number: {listed(single)}; {seeds(data)}; "
            f"holds where it is below 50 % at {many}",
            bool(single[many] < 0.5),
        ),
        Claim(
            "of few images they are",
            source,
            "shown for data sets of 20 to 500 images (read off the figure)",
            f"the same share at {few} images {single[few]:.0%}; Spearman of the number of images and the cosine "
            f"{rank:.2f}; holds where the share is at least 50 % and the correlation below 0",
            None if math.isnan(rank) else bool(single[few] >= 0.5 and rank < 0),
        ),
        Claim(
            "instead they look like averages of classes",
            source,
            "the images look like averages of classes",
            f"median cosine to the mean image of the class by number of images: {listed(average)}; to the nearest "
            f"image: {listed(nearest)}; holds where the first is larger at {many} than at {few}",
            bool(average[many] > average[few]),
        ),
    ]
    long = data.melt(["train", "seed"], ["nearest", "average"], "compared with", "cosine")
    return Result(data, claims, lambda path: draw_lines(long, path, "train", "cosine", "compared with"), lambda: strips)


def likeness(owner: Owner, found: Distilled) -> pd.DataFrame:
    """For every distilled image the largest |cosine| to a private one, and the largest to the mean image of a class.

    In the centered input space; of magnitudes, since an image with a negative dual stands for its negative.
    """
    images = found.images.double()
    private = owner.images.double()
    to_private = cosines(images, private).abs()
    means = torch.stack([private[owner.groups == group].mean(0) for group in owner.groups.unique()])
    to_means = cosines(images, means).abs()
    return pd.DataFrame({"nearest": to_private.amax(1).numpy(), "average": to_means.amax(1).numpy()})


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """(N, C, H, W) and (M, C, H, W) -> (N, M)."""
    return F.normalize(first.flatten(1), dim=1) @ F.normalize(second.flatten(1), dim=1).T


def strip_of(title: str, owner: Owner, found: Distilled) -> Strip:
    """Distilled images under the private images nearest to them, most alike first."""
    table = cosines(found.images.double(), owner.images.double()).abs()
    order = table.max(1).values.argsort(descending=True)[:SHOWN]
    mean = found.images.new_tensor(owner.data.pixel_mean).view(1, -1, 1, 1)
    private, guesses = owner.images[table[order].argmax(1)], found.images[order]
    l2 = (private - guesses).flatten(1).norm(dim=1).numpy()
    return Strip(title, (private + mean).clamp(0, 1), (guesses + mean).clamp(0, 1), l2)
