"""Appendix B: the reconstruction loss in minibatches, Algorithm 2: the same gradient, less memory."""

from functools import partial

import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from attacks.ntk.objective import Objective, backward_in_batches, make_objective
from clients.config import Count, Section
from simulator.paper.claims import Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, clocked, experiment
from simulator.paper.pictures import draw_lines
from simulator.tools.gradient_memory import BETA, SHAPE, peak_in_new_process, random_candidates, relu_mlp


class MinibatchSettings(Section):
    """candidates: sizes M of the reconstruction. batch: |B|. compared: M where gradients are compared, for each of
    compared_batches."""

    candidates: list[Count] = Field([100, 1000, 10_000])
    batch: Count = 100
    compared: Count = 24
    compared_batches: list[Count] = Field([1, 5, 24])


def cost(_: ExperimentRun, settings: MinibatchSettings) -> float:
    """From the smallest reconstruction: time grows with the candidates, and each process has to start."""
    smallest = clocked(peak_in_new_process, min(settings.candidates), settings.batch)
    return 2 * smallest * sum(count / min(settings.candidates) for count in settings.candidates)


@experiment("appendix_b", "the loss in minibatches: its gradient and its memory", MinibatchSettings, cost)
def appendix_b(run: ExperimentRun, settings: MinibatchSettings) -> Outcome:
    batches = [(batch, double_backward) for batch in settings.compared_batches for double_backward in (False, True)]
    rows, sizes = [], settings.candidates
    for done, count in enumerate(sizes):
        run.report(f"memory of {count} candidates", done, len(sizes))
        for method, batch in (("Algorithm 2", settings.batch), ("all at once", count)):
            mib = peak_in_new_process(count, batch)
            rows.append({"method": method, "candidates": count, "batch": batch, "mib": mib})
    data = pd.DataFrame(rows)
    statistics = {
        "error": max(largest_error(settings.compared, *kind) for kind in batches),
        "compared": settings.compared,
        "compared_batches": settings.compared_batches,
        "batch": settings.batch,
        **memory_statistics(data),
    }
    return Outcome(data, statistics, partial(draw_lines, data, "candidates", "mib", "method", log_x=True))


def memory_statistics(data: pd.DataFrame) -> Statistics:
    """How the memory of both ways grows from the smallest to the largest reconstruction. The gradient in the images
    themselves, which every form of the loss has to hold, is not counted in the growth of Algorithm 2."""
    table = data.pivot_table("mib", "candidates", "method")
    ends = [int(data.candidates.iloc[0]), int(data.candidates.iloc[-1])]
    growth = table.iloc[-1] - table.iloc[0]
    return {
        "sizes": ends,
        "batched": table["Algorithm 2"],
        "at_once": table["all at once"],
        "growth": growth["Algorithm 2"] - (image_memory(ends[1]) - image_memory(ends[0])),
        "tenth_of_growth_at_once": 0.1 * growth["all at once"],
    }


def image_memory(count: int) -> float:
    """MiB of `count` float32 images, or of the gradient in them."""
    return count * torch.Size(SHAPE).numel() * 4 / 2**20


def largest_error(count: int, batch: int, double_backward: bool) -> float:
    """Relative difference of loss and gradients between one batch and many, in float64."""
    generator = torch.Generator().manual_seed(0)
    model = relu_mlp(64, generator).double()
    state = model.state_dict()
    delta = {name: value * 0.01 for name, value in state.items()}
    objective = make_objective(model, SHAPE, delta, [state], double_backward)
    images, duals = (part.detach().double() for part in random_candidates(count, torch.device("cpu"), generator))
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
    return backward_in_batches(objective, images, duals, BETA, batch), images.grad, duals.grad
