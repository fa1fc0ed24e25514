"""Figure 17: convolutional networks of growing width. Figures 18 and 19: larger images and more classes."""

import pandas as pd

from simulator.paper.base import Claim
from simulator.paper.measures import at_most, listed, paired, seeds, spearman_within
from simulator.paper.sweeps import curve_experiment

WIDE = 8  # the multiplier from which on the attack has to work


@curve_experiment(
    "figure17",
    "LeNet-5 of growing width",
    "appendix J.1, figure 17",
    hue="multiplier",
    column="num_private",
    row=["dynamics"],
    extra=["multiplier"],
)
def lenet_claims(scores: pd.DataFrame, source: str) -> list[Claim]:
    ratio = (scores.l2_mean / scores.floor_l2_mean).groupby(scores.multiplier).mean()
    by_width = spearman_within(scores, "multiplier", "l2_mean", ["num_private", "dynamics", "seed"])
    wide = ratio[ratio.index >= WIDE]
    return [
        Claim(
            f"the attack works on LeNet-5 from multiplier {WIDE} on",
            source,
            "the findings on fully connected networks still apply, though the attack struggles more",
            f"mean L2 as a share of the floor's, by multiplier: {listed(ratio)}, {seeds(scores)}; holds where it is "
            f"below 1 from {WIDE} on",
            len(wide) > 0 and bool((wide < 1).all()),
        ),
        Claim(
            "wider convolutional networks are easier to reconstruct from",
            source,
            "the findings on fully connected networks still apply",
            f"Spearman of multiplier and mean L2 {by_width:.2f}; mean L2 by multiplier: "
            f"{listed(scores.groupby('multiplier').l2_mean.mean())}; holds from -0.5 down",
            at_most(by_width, -0.5),
        ),
    ]


@curve_experiment(
    "figure18",
    "Tiny-ImageNet, few images of many classes",
    "appendix J.2, figure 18",
    hue="width",
    column="num_private",
    row=["dynamics"],
)
@curve_experiment(
    "figure19",
    "Tiny-ImageNet: the reconstructed images",
    "appendix J.2, figure 19",
    hue="width",
    column="num_private",
    row=["dynamics"],
)
def resolution_claims(scores: pd.DataFrame, source: str) -> list[Claim]:
    ratio = scores.l2_mean / scores.floor_l2_mean
    pairs = paired(scores, "dynamics", "linearized", "standard", "l2_mean", ["num_private", "width", "seed"])
    return [
        Claim(
            "the attack reaches images of higher resolution",
            source,
            "images of 64x64 pixels are reconstructed, though that is more challenging",
            f"mean L2 as a share of the floor's {ratio.mean():.2f}, at most {ratio.max():.2f} over {len(scores)} "
            f"networks, {seeds(scores)}; holds where all are below 1",
            bool((ratio < 1).all()),
        ),
        Claim(
            "linearization improves reconstruction",
            f"section 4, on the images of {source}",
            "linearized networks resolve more images and have better images than others of their width",
            f"mean L2 {pairs.better.mean():.2f} linearized, {pairs.worse.mean():.2f} standard, {len(pairs)} pairs; "
            "holds where the first is lower",
            bool(pairs.better.mean() < pairs.worse.mean()),
        ),
    ]
