"""Figure 17: convolutional networks of growing width. Figures 18 and 19: larger images and more classes."""

from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import curve_table, listed, paired, score_table, seeds, spearman_within
from simulator.paper.pictures import curve_result

WIDE = 8  # the multiplier from which on the attack has to work


@experiment("figure17", "LeNet-5 of growing width")
def lenet(job: Job) -> Result:
    record = job.sweep()
    scores = score_table(record)
    wide = scores[scores.multiplier >= WIDE]
    ratio = (wide.l2_mean / wide.floor_l2_mean).groupby(wide.multiplier).mean()
    by_width = spearman_within(scores, "multiplier", "l2_mean", ["num_private", "dynamics", "seed"])
    claims = [
        Claim(
            f"the attack works on LeNet-5 from multiplier {WIDE} on",
            "appendix J.1, figure 17",
            "the findings on fully connected networks still apply, though the attack struggles more",
            f"mean L2 as a share of the floor's by multiplier: {listed(ratio)}, {seeds(scores)}; holds where all are "
            "below 1",
            len(wide) > 0 and bool((ratio < 1).all()),
        ),
        Claim(
            "wider convolutional networks are easier to reconstruct from",
            "appendix J.1, figure 17",
            "the findings on fully connected networks still apply",
            f"Spearman of multiplier and mean L2 {by_width:.2f}; mean L2 by multiplier: "
            f"{listed(scores.groupby('multiplier').l2_mean.mean())}; holds below 0",
            by_width < 0,
        ),
    ]
    data = curve_table(record, ["multiplier"])
    return curve_result(record, scores, data, claims, "multiplier", "num_private", "dynamics")


@experiment("figure18", "Tiny-ImageNet, few images of many classes")
@experiment("figure19", "Tiny-ImageNet: the reconstructed images")
def tiny_imagenet(job: Job) -> Result:
    source = f"appendix J.2, figure {job.name.removeprefix('figure')}"
    record = job.sweep()
    scores = score_table(record)
    ratio = scores.l2_mean / scores.floor_l2_mean
    pairs = paired(scores, "dynamics", "linearized", "standard", "l2_mean", ["num_private", "width", "seed"])
    claims = [
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
    data = curve_table(record)
    return curve_result(record, scores, data, claims, "width", "num_private", "dynamics")
