"""Appendix B: the reconstruction loss in minibatches, Algorithm 2: the same gradient, less memory."""

import subprocess
import sys

import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from attacks.ntk.objective import Objective, backward_in_batches, make_objective
from clients.config import Count, Section
from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.costs import clocked
from simulator.paper.pictures import draw_lines
from tests.benchmarks.iteration import BETA, SHAPE, candidates, mlp

EXACT = 1e-12  # of float64, relative


class MinibatchSettings(Section):
    """candidates: sizes M of the reconstruction. batch: |B|. compared: M where gradients are compared, for each of
    compared_batches."""

    candidates: list[Count] = Field([100, 1000, 10_000])
    batch: Count = 100
    compared: Count = 24
    compared_batches: list[Count] = Field([1, 5, 24])


def cost(job: Job) -> float:
    """From the smallest reconstruction: time grows with the candidates, and each process has to start."""
    settings = job.settings(MinibatchSettings)
    smallest = clocked(lambda: peak_memory(min(settings.candidates), settings.batch))
    return 2 * smallest * sum(count / min(settings.candidates) for count in settings.candidates)


@experiment("appendix_b", "the loss in minibatches: its gradient and its memory", MinibatchSettings, cost)
def appendix_b(job: Job) -> Result:
    settings = job.settings(MinibatchSettings)
    error = max(
        largest_error(settings.compared, batch, double_backward)
        for batch in settings.compared_batches
        for double_backward in (False, True)
    )
    rows, sizes = [], settings.candidates
    for done, count in enumerate(sizes):
        job.report(f"memory of {count} candidates", done, len(sizes))
        for method, batch in (("Algorithm 2", settings.batch), ("all at once", count)):
            rows.append({"method": method, "candidates": count, "batch": batch, "mib": peak_memory(count, batch)})
    data = pd.DataFrame(rows)
    table = data.pivot_table("mib", "candidates", "method")
    first, last = table.iloc[0], table.iloc[-1]
    inputs = {count: image_memory(count) for count in (sizes[0], sizes[-1])}
    growth = last["Algorithm 2"] - first["Algorithm 2"] - (inputs[sizes[-1]] - inputs[sizes[0]])
    listed = "; ".join(
        f"{count}: {row['Algorithm 2']:.0f} and {row['all at once']:.0f} MiB" for count, row in table.iterrows()
    )
    claims = [
        Claim(
            "minibatches give the loss and the gradient of the full batch",
            "appendix B, algorithm 2",
            "mathematically equivalent",
            f"largest relative difference of the loss and of the gradients in images and duals {error:.1e} (float64, "
            f"{settings.compared} candidates, batches of {', '.join(map(str, settings.compared_batches))}, closed form "
            f"and autograd); holds to {EXACT:g}",
            error <= EXACT,
        ),
        Claim(
            "minibatches need memory O(P + |B|)",
            "appendix B, algorithm 2",
            "allows larger reconstruction sets that may not fit into memory all at once",
            f"what one gradient adds to the peak, by candidates, in batches of {settings.batch} and all at once: "
            f"{listed}; beyond the gradient in the images themselves Algorithm 2 grows by {growth:.0f} MiB from "
            f"{sizes[0]} to {sizes[-1]} candidates; holds where that is less than a tenth of the growth all at once",
            bool(growth < 0.1 * (last["all at once"] - first["all at once"])),
        ),
    ]
    return Result(data, claims, lambda path: draw_lines(data, path, "candidates", "mib", "method", log=True))


def image_memory(count: int) -> float:
    """MiB of float32 images or of the gradient in them, which every form of the loss has to hold."""
    return count * torch.Size(SHAPE).numel() * 4 / 2**20


def peak_memory(count: int, batch: int) -> float:
    """In a process of its own: a peak never falls."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", str(count), str(batch)]
    return float(subprocess.check_output(command))


def largest_error(count: int, batch: int, double_backward: bool) -> float:
    """Relative difference of loss and gradients between one batch and many, in float64."""
    generator = torch.Generator().manual_seed(0)
    model = mlp(64, generator).double()
    state = {name: value.detach() for name, value in model.state_dict().items()}
    delta = {name: value * 0.01 for name, value in state.items()}
    objective = make_objective(model, SHAPE, delta, [state], double_backward)
    images, duals = (tensor.detach().double() for tensor in candidates(count, torch.device("cpu"), generator))
    full, parts = (gradients(objective, images, duals, size) for size in (None, batch))
    return max(float((a - b).norm() / a.norm()) for a, b in zip(full, parts, strict=True))


def gradients(objective: Objective, images: Tensor, duals: Tensor, batch: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, its gradient in the images, in the duals), all at once or in batches."""
    images, duals = images.clone().requires_grad_(), duals.clone().requires_grad_()
    if batch is None:
        loss = objective.loss(images, duals, BETA)
        of_images, of_duals = torch.autograd.grad(loss, (images, duals))
        return loss.detach(), of_images, of_duals
    images.grad, duals.grad = torch.zeros_like(images), torch.zeros_like(duals)
    loss = backward_in_batches(objective, images, duals, BETA, batch)
    return loss, images.grad, duals.grad
