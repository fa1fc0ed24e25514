"""Appendix A and the end of appendix G.1: networks, or their updates, as sums of the gradients of private images.

A final network is such a sum where its training ended at a KKT point, which is what Haim et al. (2022) attack. An
update is one, with known duals, in the limit of a single gradient step, where the attack is gradient leakage.

Appendix B: the reconstruction loss in minibatches, Algorithm 2: the same gradient, less memory.
"""

import math
import time
from functools import partial

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from attacks.interface.torch_tools import cast_state
from attacks.kernel.empirical import relative_residual
from attacks.ntk.objective import Objective, backward_in_batches, make_objective, squared_norm
from clients.config import Count, Section
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, experiment, sweep_experiment
from simulator.paper.gradient_memory import BETA, SHAPE, peak_in_new_process, random_candidates, relu_mlp
from simulator.paper.measures import draw_curves, draw_lines, image_table, networks, settings_of
from simulator.results.keys import ObservationKey
from simulator.rundir.run import Run
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner

NETWORK = ["loss", "seed", "num_private", "width"]
STEP = ["num_private", "width", "dynamics", "seed"]  # of the networks that went one step


def kkt_statistics(data: pd.DataFrame) -> Statistics:
    """Compare both attacks on the same networks, and the norms of their parameters. data: as of `beside_kkt`."""
    scores = networks(data)
    norms = scores[scores.attack == "ntk"]
    table = scores.pivot_table("l2_mean", NETWORK, "attack")
    means, by_seed = table.groupby("loss").mean(), table.groupby(["loss", "seed"]).mean()
    ratio = norms.initial / norms.delta
    left = norms[norms.loss == "cross_entropy"].unexplained
    return {
        "ntk_l2": means.ntk,
        "kkt_l2": means.kkt,
        "floor": scores.floor_l2_mean.mean(),
        "ntk_better": Signs.of(table.ntk < table.kkt),
        "ntk_better_seeds": Signs.of(by_seed.ntk < by_seed.kkt),
        "norm_ratio": ratio.groupby(norms.loss).mean(),
        "least_norm_ratio": ratio.min(),
        "unexplained": list(left),
        "least_unexplained": left.min(),
        "largest_unexplained": left.max(),
        "networks": len(left),
    }


def norm_table(record: Run) -> pd.DataFrame:
    """Return ‖θ₀‖, ‖Δθ‖ and ‖θ_f‖ of every network, and `unexplained`, the share of θ_f that its images' gradients at
    θ_f leave whatever their weights. At a KKT point of the margin that is 0 (Haim et al. 2022, equation 4)."""
    rows = []
    for name, cell in record.cells.items():
        observation, _ = record.observation(1, 0, cell=name)
        states = {"initial": observation.initial, "delta": observation.delta(), "final": observation.final}
        trained, owner = observation.trainable, Owner.of(cell.scenario)
        final = cast_state(observation.final, torch.device("cpu"), torch.float64)
        whole = {part: final[part] for part in trained}
        network = {key: settings_of(cell)[key] for key in NETWORK}
        norms = {key: squared_norm({part: state[part] for part in trained}) ** 0.5 for key, state in states.items()}
        missed = relative_residual(observation.model, final, whole, owner.images.double())
        rows.append({**network, "unexplained": missed, **norms})
    return pd.DataFrame(rows)


@sweep_experiment(
    "appendix_a",
    "beside Haim et al.'s attack on the final parameters",
    kkt_statistics,
    partial(draw_curves, hue="attack", rows=["loss"]),
)
def beside_kkt(record: Run) -> pd.DataFrame:
    """Return `image_table` with the norms of each network."""
    return image_table(record, ["loss"]).merge(norm_table(record), on=NETWORK, validate="m:1")


def step_statistics(data: pd.DataFrame) -> Statistics:
    """Compute how near the images come, and the correlation of the duals of those recovered. data: as of `one_step`."""
    scores, own = networks(data), data[data.identified_at_20_db]
    return {
        "unexplained": data.unexplained.max(),
        "networks": len(scores),
        "l2": scores.l2_mean.mean(),
        "floor": scores.floor_l2_mean.mean(),
        "below_floor": Signs.of(scores.l2_mean < scores.floor_l2_mean),
        "recovered_share": scores.recovered_fraction.mean(),
        "correlation": float(own.found_dual.corr(own.residual)) if len(own) > 2 else math.nan,
        "recovered": len(own),
        "images": len(data),
    }


def explained(cell: Cell, record: Run) -> tuple[float, Tensor]:
    """Return (‖Δθ − Σ_j α_j ∇f_θ₀(x_j)‖ / ‖Δθ‖, which the gradient of the mean loss does not explain; α_j = η (y_j −
    f_θ₀(x_j)) / N, (N, 1)), both in float64."""
    observation, _ = record.observation(1, 0, cell=cell.name)
    owner, model = Owner.of(cell.scenario), observation.model.double()
    images, state = owner.images.double(), cast_state(observation.initial, torch.device("cpu"), torch.float64)
    with torch.no_grad():
        outputs = torch.func.functional_call(model, state, (images,))
    duals = cell.scenario.training.learning_rate * (owner.targets.double() - outputs) / len(outputs)
    return relative_residual(model, state, observation.delta(), images, duals), duals


def dual_pairs(cell: Cell, record: Run) -> pd.DataFrame:
    """Return a row per private image: its dual in the step (`residual`), that of its reconstruction (`found_dual`),
    whether it was recovered (`identified_at_20_db`), and what the step leaves `unexplained`."""
    missed, duals = explained(cell, record)
    own = record.samples[record.samples.cell == cell.name].sort_values("image")
    path = record.store(cell.name).reconstruction_path(ObservationKey(1, 0, "server"), own.attack.iloc[0])
    with np.load(path, allow_pickle=False) as arrays:
        found = arrays["duals"][0, own.match.to_numpy(), 0]
    table = pd.DataFrame({"image": own.image.to_numpy(), "residual": duals[:, 0].numpy(), "found_dual": found})
    recovered = (own.identified & (own.psnr >= 20)).to_numpy()
    network = {key: settings_of(cell)[key] for key in STEP}
    return table.assign(identified_at_20_db=recovered, unexplained=missed, **network)


@sweep_experiment(
    "one_step",
    "a single gradient step: the attack is gradient leakage",
    step_statistics,
    partial(draw_curves, hue="width", rows=["dynamics"]),
)
def one_step(record: Run) -> pd.DataFrame:
    """Return `image_table` with the rows of `dual_pairs`."""
    pairs = pd.concat([dual_pairs(cell, record) for cell in record.cells.values()], ignore_index=True)
    return image_table(record).merge(pairs, on=[*STEP, "image"], validate="1:1")


COMPARED = "both compared"  # rows of data.csv with the difference of gradients, in place of memory


class MinibatchSettings(Section):
    """The section `settings` of the experiment's file.

    candidates: sizes M of the reconstruction.
    batch: |B|.
    compared: M where gradients are compared, for each of compared_batches.
    """

    candidates: list[Count] = Field([100, 1000, 10_000])
    batch: Count = 100
    compared: Count = 24
    compared_batches: list[Count] = Field([1, 5, 24])


def cost(_: ExperimentRun, settings: MinibatchSettings) -> float:
    """Return the seconds, from the smallest size: time grows with the candidates, and each process has to start."""
    start = time.perf_counter()  # the time of another process
    peak_in_new_process(min(settings.candidates), settings.batch)
    smallest = time.perf_counter() - start
    return 2 * smallest * sum(count / min(settings.candidates) for count in settings.candidates)


def minibatch_statistics(data: pd.DataFrame) -> Statistics:
    """Compute the largest difference of gradients, and how the memory of both ways grows from the smallest to the
    largest reconstruction. The growth of Algorithm 2 is without the gradient in the images themselves, which every form
    of the loss has to hold."""
    compared = data[data.method == COMPARED]
    table = data.pivot_table("mib", "candidates", "method")  # comparisons have none
    ends = [int(table.index[0]), int(table.index[-1])]
    growth = table.iloc[-1] - table.iloc[0]
    return {
        "error": compared.error.max(),
        "compared": int(compared.candidates.iloc[0]),
        "compared_batches": compared.batch.tolist(),
        "batch": int(data[data.method == "Algorithm 2"].batch.iloc[0]),
        "sizes": ends,
        "batched": table["Algorithm 2"],
        "at_once": table["all at once"],
        "growth": growth["Algorithm 2"] - (image_memory(ends[1]) - image_memory(ends[0])),
        "tenth_of_growth_at_once": 0.1 * growth["all at once"],
    }


def image_memory(count: int) -> float:
    """Return the MiB of `count` float32 images, or of the gradient in them."""
    return count * torch.Size(SHAPE).numel() * 4 / 2**20


def largest_error(count: int, batch: int, double_backward: bool) -> float:
    """Return the relative difference of loss and gradients between one batch and many, in float64."""
    generator = torch.Generator().manual_seed(0)
    model = relu_mlp(64, generator).double()
    state = model.state_dict()
    delta = {name: value * 0.01 for name, value in state.items()}
    objective = make_objective(model, SHAPE, delta, [state], double_backward)
    images, duals = (part.detach().double() for part in random_candidates(count, torch.device("cpu"), generator))
    full, parts = (gradients(objective, images, duals, size) for size in (None, batch))
    return max(float((a - b).norm() / a.norm()) for a, b in zip(full, parts, strict=True))


def gradients(objective: Objective, images: Tensor, duals: Tensor, batch: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return (loss, its gradient in the images, in the duals), all at once or in batches."""
    images, duals = images.clone().requires_grad_(), duals.clone().requires_grad_()
    if batch is None:
        loss = objective.loss(images, duals, BETA)
        of_images, of_duals = torch.autograd.grad(loss, (images, duals))
        return loss.detach(), of_images, of_duals
    images.grad, duals.grad = torch.zeros_like(images), torch.zeros_like(duals)
    return backward_in_batches(objective, images, duals, BETA, batch), images.grad, duals.grad


@experiment(
    "appendix_b",
    "the loss in minibatches: its gradient and its memory",
    minibatch_statistics,
    partial(draw_lines, x="candidates", y="mib", hue="method", log_x=True),
    MinibatchSettings,
    cost,
)
def appendix_b(run: ExperimentRun, settings: MinibatchSettings) -> Outcome:
    rows: list[dict[str, object]] = []
    for batch in settings.compared_batches:
        error = max(largest_error(settings.compared, batch, double_backward) for double_backward in (False, True))
        rows.append({"method": COMPARED, "candidates": settings.compared, "batch": batch, "error": error})
    for done, count in enumerate(settings.candidates):
        run.report(f"memory of {count} candidates", done, len(settings.candidates))
        for method, batch in (("Algorithm 2", settings.batch), ("all at once", count)):
            mib = peak_in_new_process(count, batch)
            rows.append({"method": method, "candidates": count, "batch": batch, "mib": mib})
    return Outcome(pd.DataFrame(rows))
