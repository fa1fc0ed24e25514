"""Figure 4: reconstruction from a fine-tuned ResNet-18, and the span attack beside it on the same networks."""

from functools import partial

import pandas as pd

from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import Outcome, sweep_experiment
from simulator.paper.measures import by_seed, floors, strips
from simulator.paper.pictures import draw_lines
from simulator.results.run import Run


@sweep_experiment("figure4", "fine-tuning: reconstruction from a ResNet-18")
def figure4(record: Run) -> Outcome:
    data = finetuned(record)
    ntk = data[data.attack == "ntk"]
    own = record.samples[record.samples.attack == "ntk"]
    near = (own.l2 < own.mean_image_l2) & (own.l2 < own.floor_l2)
    ntk = ntk.assign(nearer=near.groupby(own.cell).sum().reindex(ntk.cell, fill_value=0).to_numpy())
    statistics = {"weights": pretrained_on(record), **ntk_statistics(ntk)}
    draw, sheet = partial(draw_lines, data, "num_private", "l2_mean", "attack"), partial(strips, record, record.leakage)
    return Outcome(data, statistics, draw, sheet, by_seed(ntk_statistics, ntk))


def ntk_statistics(ntk: pd.DataFrame) -> Statistics:
    """Of figure 4. `nearer` in the table: of each network, how many private images are nearer to their reconstruction
    than to the mean image and to one of the floor."""
    by_size = ntk.groupby("num_private")
    return {
        "nearer": ntk.nearer.tolist(),
        "num_nearer": int(ntk.nearer.sum()),
        "num_images": int(ntk.num_private.sum()),
        "l2_by_images": by_size.l2_mean.mean(),
        "floor_by_images": by_size.floor_l2_mean.mean(),
        "best_psnr": ntk.psnr_best.max(),
        "recovered": int(ntk.recovered.sum()),
        "distances": list(ntk.kernel_distance),
    }


@sweep_experiment("finetune", "fine-tuning: the span attack beside the NTK attack")
def beside(record: Run) -> Outcome:
    data = finetuned(record)
    weights = {"weights": pretrained_on(record), "public_images": int(record.scenario.data.public)}
    draw = partial(draw_lines, data, "num_private", "l2_mean", "attack", col="trained")
    sheet = partial(strips, record, record.leakage[record.leakage.num_reconstructed > 0])
    return Outcome(data, {**weights, **span_statistics(data)}, draw, sheet, by_seed(span_statistics, data))


def span_statistics(data: pd.DataFrame) -> Statistics:
    """Of both attacks on the same networks. data: as of `finetuned`."""
    ntk, span = data[data.attack == "ntk"], data[data.attack == "span"]
    returned = span.groupby("trained")[["num_reconstructed", "num_private"]].sum()
    return {
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


def finetuned(record: Run) -> pd.DataFrame:
    """The leakage table with `floor_l2_mean` as of `floors`, and `trained`, which is "all layers" or "head"."""
    scores = record.leakage.merge(floors(record), on=["cell", "attack"])
    scenarios = [record.cells[name].scenario for name in scores.cell]
    trained = ["head" if "layer*" in scenario.model.frozen else "all layers" for scenario in scenarios]
    return scores.assign(dataset=[scenario.data.name for scenario in scenarios], trained=trained)


def pretrained_on(record: Run) -> str:
    """What stands in for the paper's ImageNet weights, in words."""
    scenario, model = record.scenario, record.scenario.model
    if model.pretrain is None:
        return "weights from a file" if model.checkpoint else "not pretrained"
    if model.pretrain.data is None:
        return f"pretrained on {scenario.data.public} images of the same data, the head drawn anew"
    return f"pretrained on {model.pretrain.data.public} images of {model.pretrain.data.name}"
