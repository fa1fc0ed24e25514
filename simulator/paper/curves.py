"""Figures 2 and 22, 5 and 24: reconstruction curves over training set size, width, dynamics and number of classes."""

from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import curve_table, listed, paired, score_table, seeds, spearman_within
from simulator.paper.pictures import curve_result

SETTING = ["num_private", "width", "dynamics", "seed"]
RESOLVED = "images with a PSNR of 20 dB that are identified"


@experiment("figure2", "reconstruction curves over images, width and dynamics")
@experiment("figure22", "the curves of figure 2 for more numbers of images")
def two_classes(job: Job) -> Result:
    source = {"figure2": "section 4, figure 2", "figure22": "appendix J.5, figure 22"}[job.name]
    record = job.sweep()
    scores = score_table(record)
    by_size = spearman_within(scores, "num_private", "l2_mean", ["width", "dynamics", "seed"])
    by_width = spearman_within(scores, "width", "recovered", ["num_private", "dynamics", "seed"])
    widths = scores.groupby("width").recovered_fraction.mean()
    pairs = paired(scores, "dynamics", "linearized", "standard", "l2_mean", ["num_private", "width", "seed"])
    better = float((pairs.better < pairs.worse).mean())
    claims = [
        Claim(
            "smaller training sets are easier to reconstruct",
            source,
            "the curve of a smaller data set has low values for all model widths",
            f"Spearman of images and mean L2 {by_size:.2f}, mean over widths, dynamics and {seeds(scores)}; "
            f"mean L2 by images: {listed(scores.groupby('num_private').l2_mean.mean())}; holds from 0.8 on",
            by_size >= 0.8,
        ),
        Claim(
            "wider models resolve larger data sets",
            source,
            "the image index from which on quality drops rises with width almost monotonically",
            f"Spearman of width and number resolved ({RESOLVED}) {by_width:.2f}, mean over training sets; "
            f"share resolved by width: {listed(widths)}; holds from 0.5 on",
            by_width >= 0.5,
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
    data = curve_table(record)
    return curve_result(record, scores, data, claims, "width", "num_private", "dynamics")


@experiment("figure5", "reconstruction curves with ten classes, beside two")
@experiment("figure24", "the curves of figure 5 for more numbers of images")
def ten_classes(job: Job) -> Result:
    source = {"figure5": "section 4, figure 5", "figure24": "appendix J.5, figure 24"}[job.name]
    record = job.sweep()
    scores = score_table(record)
    binary = next(task for task in scores.task if task != "classes")
    pairs = paired(scores, "task", "classes", binary, "l2_mean", SETTING)
    better = float((pairs.better < pairs.worse).mean())
    means = pairs.groupby("seed").mean()
    claims = [
        Claim(
            "more classes make reconstruction easier",
            source,
            "the attack has improved reconstruction quality with more classes",
            f"mean L2 {pairs.better.mean():.2f} with all classes, {pairs.worse.mean():.2f} with two, lower in "
            f"{better:.0%} of {len(pairs)} pairs; holds where the mean is lower in each of {seeds(scores)}",
            bool((means.better < means.worse).all()),
        )
    ]
    data = curve_table(record, ["task"])
    data = data.assign(training=data.task + ", " + data.dynamics)
    return curve_result(record, scores[scores.task == "classes"], data, claims, "width", "num_private", "training")
