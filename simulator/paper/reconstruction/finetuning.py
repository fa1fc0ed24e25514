"""Figure 4: reconstruction from a fine-tuned ResNet-18, and the span attack beside it on the same networks."""

from functools import partial

import pandas as pd

from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import floors, listed, seeds, settings_of, strips
from simulator.paper.pictures import draw_lines
from simulator.results.record import Record

NEAR = 0.1  # kernel distance below which a network counts as in the kernel regime
TOLD = 0.99  # AUC from which on members count as told from outsiders


@experiment("figure4", "fine-tuning: reconstruction from a ResNet-18")
def figure4(job: Job) -> Result:
    record = job.sweep()
    data = finetuned(record)
    ntk = data[data.attack == "ntk"]
    best = [better_than_nothing(record, row) for _, row in ntk.iterrows()]
    by_size, distance = ntk.groupby("num_private"), ntk.kernel_distance
    claims = [
        Claim(
            "some images of a few-shot fine-tuning set are recovered, with limited quality",
            "section 5, figure 4",
            "the attack is able to recover some training images but with limited quality",
            f"{sum(best)} of {int(ntk.num_private.sum())} images nearer to a reconstruction than to the mean public "
            f"image and to a public one of the floor; mean L2 by images {listed(by_size.l2_mean.mean())}, floor "
            f"{listed(by_size.floor_l2_mean.mean())}, best PSNR {ntk.psnr_best.max():.1f} dB, "
            f"{int(ntk.recovered.sum())} recovered (PSNR 20 dB and identified), {pretrained_on(record)}, {seeds(ntk)}; "
            "holds where every network has such an image",
            min(best) > 0,
        ),
        Claim(
            "fine-tuning is near the kernel regime",
            "section 5",
            "training during fine-tuning is well approximated by the frozen finite-NTK theory",
            f"kernel distance {distance.min():.3f} to {distance.max():.3f}; holds where all are below {NEAR}",
            bool((distance < NEAR).all()),
        ),
    ]
    draw = partial(draw_lines, data, x="num_private", y="l2_mean", hue="attack")
    return Result(data, claims, draw, lambda: strips(record, record.leakage))


@experiment("finetune", "fine-tuning: the span attack beside the NTK attack")
def beside(job: Job) -> Result:
    record = job.sweep()
    data = finetuned(record)
    ntk, span = data[data.attack == "ntk"], data[data.attack == "span"]
    found = span.groupby("trained")[["num_reconstructed", "num_private"]].sum()
    returned = ", ".join(f"{row.num_reconstructed} of {row.num_private} ({name})" for name, row in found.iterrows())
    claims = [
        Claim(
            "low kernel distance goes with reconstruction",
            "sections 4 and 5",
            "fine-tuning is an easy target for the attack",
            f"mean L2 as a share of the floor's by what is trained: "
            f"{listed((ntk.l2_mean / ntk.floor_l2_mean).groupby(ntk.trained).mean())}; kernel distance: "
            f"{listed(ntk.groupby('trained').kernel_distance.mean())}; {pretrained_on(record)}, {seeds(ntk)}; holds "
            "where all distances are below 0.1 and all shares below 1",
            bool((ntk.kernel_distance < NEAR).all() and (ntk.l2_mean < ntk.floor_l2_mean).all()),
        ),
        Claim(
            "the row spaces of an update tell its images from others, also in convolutions",
            "not in the paper: span attack",
            "",
            f"AUC of membership among {int(record.scenario.data.public)} public images by what is trained: "
            f"{listed(data.groupby('trained').membership_auc.min())}; late convolutions count with their patches; "
            f"holds from {TOLD} on",
            bool((data.membership_auc >= TOLD).all()),
        ),
        Claim(
            "the span attack's images are nearer than public ones",
            "not in the paper: span attack",
            "",
            f"mean L2 as a share of the floor's by what is trained: "
            f"{listed((span.l2_mean / span.floor_l2_mean).groupby(span.trained).mean())}; images that pass its "
            f"tests of features: {returned}; holds where all shares are below 1",
            bool((span.l2_mean < span.floor_l2_mean).all()),
        ),
    ]
    draw = partial(draw_lines, data, x="num_private", y="l2_mean", hue="attack", column="trained")
    return Result(data, claims, draw, lambda: strips(record, record.leakage[record.leakage.num_reconstructed > 0]))


def finetuned(record: Record) -> pd.DataFrame:
    """The leakage table with `floor_l2_mean` as of `floors` and `trained`: all layers, or the head alone."""
    trained = {
        name: "head" if "layer*" in cell.scenario.model.frozen else "all layers" for name, cell in record.cells.items()
    }
    settings = pd.DataFrame([settings_of(cell) for cell in record.cells.values()])[["cell", "dataset"]]
    scores = record.leakage.merge(floors(record), on=["cell", "attack"]).merge(settings, on="cell", validate="m:1")
    return scores.assign(trained=scores.cell.map(trained))


def better_than_nothing(record: Record, row: pd.Series) -> int:
    """How many private images are nearer to their reconstruction than to the mean image and to one of the floor."""
    samples = record.samples[(record.samples.cell == row["cell"]) & (record.samples.attack == row["attack"])]
    return int(((samples.l2 < samples.mean_image_l2) & (samples.l2 < samples.floor_l2)).sum())


def pretrained_on(record: Record) -> str:
    """In words, for claims: what stands in for the paper's ImageNet weights."""
    scenario = record.scenario
    model = scenario.model
    if model.pretrain is None:
        return "weights from a file" if model.checkpoint else "not pretrained"
    if model.pretrain.data is None:
        return f"pretrained on {scenario.data.public} images of the same data, the head drawn anew"
    return f"pretrained on {model.pretrain.data.public} images of {model.pretrain.data.name}"
