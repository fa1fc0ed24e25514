"""Figures 2 and 22, 5 and 24: reconstruction curves over training set size, width, dynamics and number of classes."""

import pandas as pd

from simulator.paper.base import Claim
from simulator.paper.measures import at_least, binary_task, listed, paired, seeds, spearman_within
from simulator.paper.sweeps import curve_experiment


@curve_experiment(
    "figure2",
    "reconstruction curves over images, width and dynamics",
    "section 4, figure 2",
    hue="width",
    column="num_private",
    row=["dynamics"],
)
@curve_experiment(
    "figure22",
    "the curves of figure 2 for more numbers of images",
    "appendix J.5, figure 22",
    hue="width",
    column="num_private",
    row=["dynamics"],
)
def size_claims(scores: pd.DataFrame, source: str) -> list[Claim]:
    by_size = spearman_within(scores, "num_private", "l2_mean", ["width", "dynamics", "seed"])
    by_width = spearman_within(scores, "width", "recovered", ["num_private", "dynamics", "seed"])
    resolved = scores.groupby("width").recovered_fraction.mean()
    pairs = paired(scores, "dynamics", "linearized", "standard", "l2_mean", ["num_private", "width", "seed"])
    better = float((pairs.better < pairs.worse).mean())
    return [
        Claim(
            "smaller training sets are easier to reconstruct",
            source,
            "the curve of a smaller data set has low values for all model widths",
            f"Spearman of images and mean L2 {by_size:.2f}, mean over widths, dynamics and {seeds(scores)}; "
            f"mean L2 by images: {listed(scores.groupby('num_private').l2_mean.mean())}; holds from 0.8 on",
            at_least(by_size, 0.8),
        ),
        Claim(
            "wider models resolve larger data sets",
            source,
            "the image index from which on quality drops rises with width almost monotonically",
            f"Spearman of width and the number of images with 20 dB that are identified {by_width:.2f}, mean over "
            f"training sets; share by width: {listed(resolved)}; holds from 0.5 on",
            at_least(by_width, 0.5),
        ),
        Claim(
            "linearization improves reconstruction",
            source,
            "linearized networks resolve more images and have better images than others of their width",
            f"mean L2 {pairs.better.mean():.2f} linearized, {pairs.worse.mean():.2f} standard; better in "
            f"{better:.0%} of {len(pairs)} pairs; holds from 80 % on",
            better >= 0.8,
        ),
    ]


@curve_experiment(
    "figure5",
    "reconstruction curves with ten classes, beside two",
    "section 4, figure 5",
    hue="width",
    column="num_private",
    row=["task", "dynamics"],
    extra=["task"],
)
@curve_experiment(
    "figure24",
    "the curves of figure 5 for more numbers of images",
    "appendix J.5, figure 24",
    hue="width",
    column="num_private",
    row=["task", "dynamics"],
    extra=["task"],
)
def class_claims(scores: pd.DataFrame, source: str) -> list[Claim]:
    pair = ["num_private", "width", "dynamics", "seed"]
    pairs = paired(scores, "task", "classes", binary_task(scores), "l2_mean", pair)
    means, each = pairs.groupby("seed").mean(), pairs.groupby("dynamics").mean()
    said = ", ".join(f"{name}: {row.better:.2f} and {row.worse:.2f}" for name, row in each.iterrows())
    return [
        Claim(
            "more classes make reconstruction easier",
            source,
            "the attack has improved reconstruction quality with more classes",
            f"mean L2 with all classes and with two, {said}; lower with all in "
            f"{(pairs.better < pairs.worse).mean():.0%} of {len(pairs)} pairs; holds where their mean is lower in each "
            f"of {seeds(scores)}",
            bool((means.better < means.worse).all()),
        )
    ]
