"""Figures 13 and 14: the images of RKIP-finite, private ones of few and averages of many."""

from functools import partial

import pandas as pd
import torch

from clients.distillation import Distilled
from simulator.paper.claims import Statistics
from simulator.paper.distillation.sets import DistillationSettings, cosines, cost, distill_all, sheet
from simulator.paper.experiment import ExperimentRun, Outcome, experiment
from simulator.paper.measures import spearman_within
from simulator.paper.pictures import draw_lines
from simulator.tools.distillation import Owner

ALIKE = 0.9  # the cosine from which on two images are one


@experiment("figure13", "images of RKIP-finite by the number of training images", DistillationSettings, cost)
@experiment("figure14", "images of RKIP-finite by the number of training images, CIFAR-10", DistillationSettings, cost)
def distilled_images(run: ExperimentRun) -> Outcome:
    settings = run.settings(DistillationSettings)
    parts, found = [], []
    for cell in run.cells:
        owner = Owner.of(cell.scenario)
        for one in distill_all(owner, settings, run.report):
            common = {"train": len(owner.images), "size": len(one.result.images), "seed": cell.scenario.seed}
            parts.append(likeness(owner, one.result).assign(**common))
            found.append(one)
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
