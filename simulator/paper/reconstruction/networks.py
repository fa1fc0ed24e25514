"""Figure 17: convolutional networks of growing width. Figures 18 and 19: larger images and more classes."""

import pandas as pd

from simulator.paper.base import Claim
from simulator.paper.measures import Steps, at_least, listed, paired, seeds
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
    wider = Steps.of(scores, "multiplier", "l2_mean", ["num_private", "dynamics", "seed"])
    wide = ratio[ratio.index >= WIDE]
    return [
        Claim(
            f"the attack works on LeNet-5 from multiplier {WIDE} on",
            source,
            "the findings on fully connected networks still apply, though the attack struggles more",
            f"mean L2 as a share of that of who knows nothing, by multiplier: {listed(ratio)}, {seeds(scores)}; "
            f"holds where it is below 1 from {WIDE} on",
            len(wide) > 0 and bool((wide < 1).all()),
        ),
        Claim(
            "wider convolutional networks are easier to reconstruct from",
            source,
            "the findings on fully connected networks still apply",
            f"mean L2 falls in {wider.down} of {wider.count} steps to the next multiplier; its mean by multiplier: "
            f"{listed(scores.groupby('multiplier').l2_mean.mean())}; holds where it falls in 80 % of the steps",
            at_least(wider.share, 0.8),
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
            f"mean L2 as a share of that of who knows nothing {ratio.mean():.2f}, at most {ratio.max():.2f} over "
            f"{len(scores)} networks, {seeds(scores)}; holds where all are below 1",
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
