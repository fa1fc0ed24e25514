"""Figures 2, 3, 5, 15 to 20 and 22 to 24, appendices G.2 and I: experiments that are one sweep, whose score table is
judged and drawn as reconstruction curves, points or lines.

Figure 4: reconstruction from a fine-tuned ResNet-18, and the span attack beside it on the same networks.
"""

from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd

from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import Draw, Judge, sweep_experiment
from simulator.paper.measures import (
    binary_task,
    draw_curves,
    draw_lines,
    draw_scatter,
    falling,
    floors,
    image_table,
    networks,
    paired,
    spearman,
    spearman_within,
)
from simulator.rundir.run import Run

WIDE = 8  # the multiplier of LeNet-5 from which on the attack has to work
SETTING = ["num_private", "width", "seed"]

FINETUNED = (  # columns of data.csv after fine-tuning
    "seed num_private trained attack l2_mean floor_l2_mean nearer psnr_best recovered num_reconstructed "
    "kernel_distance membership_auc weights public_images"
).split()

draw_regime = partial(draw_scatter, x="kernel_distance", y="l2_mean")


def score_experiment(name: str, title: str, draw: Draw, extra: Sequence[str] = ()) -> Callable[[Judge], Judge]:
    """Register the experiment whose statistics the decorated function reads off the `networks` of its `image_table`,
    which has these `extra` columns; it stays a plain function of a table. draw: takes all of it."""

    def register(statistics: Judge) -> Judge:
        sweep_experiment(name, title, lambda data: statistics(networks(data)), draw)(partial(image_table, extra=extra))
        return statistics

    return register


def curve_experiment(name: str, title: str, hue: str, *rows: str) -> Callable[[Judge], Judge]:
    """Do as `score_experiment`, with a panel of reconstruction curves for each number of images. hue, rows: as of
    `draw_curves`."""
    return score_experiment(name, title, partial(draw_curves, hue=hue, rows=rows), [hue, *rows])


@curve_experiment("figure2", "reconstruction curves over images, width and dynamics", "width", "dynamics")
@curve_experiment("figure22", "the curves of figure 2 for more numbers of images", "width", "dynamics")
def size_statistics(scores: pd.DataFrame) -> Statistics:
    """Relate error and recovered images to the number of images, the width and linearized training."""
    return {
        "rank_images": spearman_within(scores, "num_private", "l2_mean", ["width", "dynamics", "seed"]),
        "rank_width": spearman_within(scores, "width", "recovered", ["num_private", "dynamics", "seed"]),
        "l2_by_images": scores.groupby("num_private").l2_mean.mean(),
        "share_by_width": scores.groupby("width").recovered_fraction.mean(),
        **linearized_statistics(scores),
    }


def linearized_statistics(scores: pd.DataFrame) -> Statistics:
    """Compare pairs of networks that differ in the training dynamics alone."""
    pairs = paired(scores, "dynamics", "linearized", "standard", "l2_mean", SETTING)
    better = Signs.of(pairs.better < pairs.worse)
    return {"linearized_l2": pairs.better.mean(), "standard_l2": pairs.worse.mean(), "linearized_better": better}


@curve_experiment("figure5", "reconstruction curves with ten classes, beside two", "width", "task", "dynamics")
@curve_experiment("figure24", "the curves of figure 5 for more numbers of images", "width", "task", "dynamics")
def class_statistics(scores: pd.DataFrame) -> Statistics:
    """Compare pairs of networks that differ in the task alone: all classes, or two groups of them."""
    pair = ["num_private", "width", "dynamics", "seed"]
    pairs = paired(scores, "task", "classes", binary_task(scores), "l2_mean", pair)
    by_dynamics, by_seed = pairs.groupby("dynamics").mean(), pairs.groupby("seed").mean()
    return {
        "classes_l2": by_dynamics.better,
        "two_groups_l2": by_dynamics.worse,
        "classes_better": Signs.of(pairs.better < pairs.worse),
        "better_seeds": Signs.of(by_seed.better < by_seed.worse),
    }


@score_experiment(
    "figure15",
    "early stopping: error against the loss at the stop",
    partial(draw_lines, x="stop_at_loss", y="l2_mean", hue="width", col="num_private", log_x=True),
    ["stop_at_loss"],
)
@curve_experiment("figure16", "early stopping: curves for one number of images", "stop_at_loss", "width")
@curve_experiment("figure23", "early stopping: curves for several numbers of images", "stop_at_loss", "width")
def stopping_statistics(scores: pd.DataFrame) -> Statistics:
    """Compare the networks that stopped first, at the highest loss, with those that stopped last."""
    early, late = scores.stop_at_loss.max(), scores.stop_at_loss.min()
    by_seed = paired(scores, "stop_at_loss", early, late, "l2_mean", SETTING).groupby("seed").mean()
    first, by_loss = scores[scores.stop_at_loss == early], scores.groupby("stop_at_loss")
    return {
        "early_loss": early,
        "late_loss": late,
        "early_l2": first.l2_mean.mean(),
        "early_floor": first.floor_l2_mean.mean(),
        "early_below_floor": Signs.of(first.l2_mean < first.floor_l2_mean),
        "l2_by_loss": by_loss.l2_mean.mean(),
        "better_seeds": Signs.of(by_seed.better < by_seed.worse),
        "distance_by_loss": by_loss.kernel_distance.mean(),
        "rank_distance": spearman_within(scores, "stop_at_loss", "kernel_distance", SETTING),
    }


@curve_experiment("appendix_g", "cross-entropy beside squared error", "loss", "width")
def loss_statistics(scores: pd.DataFrame) -> Statistics:
    """Score the networks trained under cross-entropy, beside the mean error of the others."""
    own, squared = scores[scores.loss == "cross_entropy"], scores[scores.loss == "mse"]
    return {
        "l2": own.l2_mean.mean(),
        "floor": own.floor_l2_mean.mean(),
        "below_floor": Signs.of(own.l2_mean < own.floor_l2_mean),
        "squared_error_l2": squared.l2_mean.mean(),
    }


@curve_experiment("appendix_i", "the choice of kernel: initial, final or hybrid", "attack", "width")
def kernel_statistics(scores: pd.DataFrame) -> Statistics:
    """Compare the attack in the tangent space of the initial network, of the final one, and of both (hybrid)."""
    table = scores.pivot_table("l2_mean", SETTING, "attack")
    by_seed, seconds = table.groupby("seed").mean(), scores.groupby("attack").seconds.mean()
    return {
        "l2": table.mean(),
        "final_better": Signs.of(table.final < table.initial),
        "final_better_seeds": Signs.of(by_seed.final < by_seed.initial),
        "hybrid_better": Signs.of(table.hybrid < table.final),
        "hybrid_better_seeds": Signs.of(by_seed.hybrid < by_seed[["initial", "final"]].min(axis=1)),
        "slowdown": seconds["hybrid"] / seconds["final"],
    }


def few_statistics(data: pd.DataFrame) -> Statistics:
    """Score as many of the private images that come out best as the smallest set holds: L2 by the number of images.
    data: as of `image_table`."""
    few = data.num_private.min()
    best = data[data["rank"] <= few]
    table = best.groupby(["num_private", "width", "seed"], as_index=False)[["l2", "floor_l2"]].mean()
    return {
        "few": few,
        "l2": table.groupby("num_private").l2.mean(),
        "floor": table.groupby("num_private").floor_l2.mean(),
        "rank": spearman_within(table, "num_private", "l2", ["width", "seed"]),
    }


sweep_experiment(
    "distilled_curves",
    "the curves of few reconstructions, as of RKIP-finite, by the number of images",
    few_statistics,
    partial(draw_curves, hue="width", rows=["dynamics"]),
)(image_table)


@curve_experiment("figure17", "LeNet-5 of growing width", "multiplier", "dynamics")
def lenet_statistics(scores: pd.DataFrame) -> Statistics:
    """Return the error by the width multiplier, also as a share of the floor's."""
    share = (scores.l2_mean / scores.floor_l2_mean).groupby(scores.multiplier).mean()
    wide = share[share.index >= WIDE]
    return {
        "floor_share": share,
        "wide_share": wide,
        "num_wide": len(wide),
        "l2_by_multiplier": scores.groupby("multiplier").l2_mean.mean(),
        "falling": falling(scores, "multiplier", "l2_mean", ["num_private", "dynamics", "seed"]),
    }


@curve_experiment("figure18", "Tiny-ImageNet, few images of many classes", "width", "dynamics")
@curve_experiment("figure19", "Tiny-ImageNet: the reconstructed images", "width", "dynamics")
def resolution_statistics(scores: pd.DataFrame) -> Statistics:
    """Return the error on larger images as a share of the floor's, and what linearized training changes."""
    share = scores.l2_mean / scores.floor_l2_mean
    return {
        "floor_share": share.mean(),
        "largest_floor_share": share.max(),
        "below_floor": Signs.of(share < 1),
        **linearized_statistics(scores),
    }


@score_experiment(
    "figure3", "kernel distance against reconstruction error, two classes", partial(draw_regime, style="dynamics")
)
def regime_statistics(scores: pd.DataFrame) -> Statistics:
    """Relate error and kernel distance of networks under standard training to each other, to width and to images."""
    trained = scores[scores.dynamics == "standard"]
    larger = falling(trained, "num_private", "kernel_distance", ["width", "seed"])
    return {
        "rank": spearman(trained, "kernel_distance", "l2_mean"),
        "rank_within": spearman_within(trained, "kernel_distance", "l2_mean", ["num_private"]),
        "networks": len(trained),
        "distances": [trained.kernel_distance.min(), trained.kernel_distance.max()],
        "errors": [trained.l2_mean.min(), trained.l2_mean.max()],
        "wider_falls": falling(trained, "width", "kernel_distance", ["num_private", "seed"]),
        "larger_rises": Signs(larger.total - larger.count, larger.total),
    }


@score_experiment(
    "figure20", "kernel distance against error, ten classes beside two", partial(draw_regime, style="task"), ["task"]
)
def task_statistics(scores: pd.DataFrame) -> Statistics:
    """Return figure 3's statistics with all classes, and kernel distances of pairs that differ in the task alone."""
    pair = ["num_private", "width", "dynamics", "seed"]
    pairs = paired(scores, "task", "classes", binary_task(scores), "kernel_distance", pair)
    return {
        **regime_statistics(scores[scores.task == "classes"]),
        "classes_distance": pairs.better.max(),
        "two_groups_distance": pairs.worse.max(),
        "classes_lower": Signs.of(pairs.better < pairs.worse),
    }


def finetuned(record: Run) -> pd.DataFrame:
    """Return the leakage table with `floor_l2_mean` as of `floors`; `trained`, which is "all layers" or "head";
    `nearer`, how many private images are nearer to their reconstruction than to the mean image and to one of the floor;
    `weights`, what stands in for the paper's ImageNet weights; and the number of `public_images`."""
    own, keys = record.samples, ["cell", "attack"]
    near = ((own.l2 < own.mean_image_l2) & (own.l2 < own.floor_l2)).groupby([own[key] for key in keys]).sum()
    scores = record.leakage.merge(floors(record), on=keys).merge(near.rename("nearer").reset_index(), on=keys)
    scenarios = [record.cells[name].scenario for name in scores.cell]
    trained = ["head" if "layer*" in scenario.model.frozen else "all layers" for scenario in scenarios]
    public = int(record.scenario.data.public)
    return scores.assign(trained=trained, weights=pretrained_on(record), public_images=public)[FINETUNED]


def ntk_statistics(data: pd.DataFrame) -> Statistics:
    """Score the NTK attack for figure 4. data: as of `finetuned`."""
    ntk = data[data.attack == "ntk"]
    by_size = ntk.groupby("num_private")
    return {
        "weights": data.weights.iloc[0],
        "nearer": ntk.nearer.tolist(),
        "num_nearer": int(ntk.nearer.sum()),
        "num_images": int(ntk.num_private.sum()),
        "l2_by_images": by_size.l2_mean.mean(),
        "floor_by_images": by_size.floor_l2_mean.mean(),
        "best_psnr": ntk.psnr_best.max(),
        "recovered": int(ntk.recovered.sum()),
        "distances": list(ntk.kernel_distance),
    }


def span_statistics(data: pd.DataFrame) -> Statistics:
    """Score both attacks on the same networks. data: as of `finetuned`."""
    ntk, span = data[data.attack == "ntk"], data[data.attack == "span"]
    returned = span.groupby("trained")[["num_reconstructed", "num_private"]].sum()
    return {
        "weights": data.weights.iloc[0],
        "public_images": data.public_images.iloc[0],
        "ntk_share": (ntk.l2_mean / ntk.floor_l2_mean).groupby(ntk.trained).mean(),
        "ntk_below_floor": Signs.of(ntk.l2_mean < ntk.floor_l2_mean),
        "distances": list(ntk.kernel_distance),
        "distance_by_trained": ntk.groupby("trained").kernel_distance.mean(),
        "auc": data.groupby("trained").membership_auc.min(),
        "span_share": (span.l2_mean / span.floor_l2_mean).groupby(span.trained).mean(),
        "span_below_floor": Signs.of(span.l2_mean < span.floor_l2_mean),
        "returned": returned.num_reconstructed,
        "private": returned.num_private,
    }


def pretrained_on(record: Run) -> str:
    """Say what stands in for the paper's ImageNet weights."""
    scenario, model = record.scenario, record.scenario.model
    if model.pretrain is None:
        return "weights from a file" if model.checkpoint else "not pretrained"
    if model.pretrain.data is None:
        return f"pretrained on {scenario.data.public} images of the same data, the head drawn anew"
    return f"pretrained on {model.pretrain.data.public} images of {model.pretrain.data.name}"


draw_finetuned = partial(draw_lines, x="num_private", y="l2_mean", hue="attack", col="trained")
for name, title, statistics in (
    ("figure4", "fine-tuning: reconstruction from a ResNet-18", ntk_statistics),
    ("finetune", "fine-tuning: the span attack beside the NTK attack", span_statistics),
):
    sweep_experiment(name, title, statistics, draw_finetuned)(finetuned)
