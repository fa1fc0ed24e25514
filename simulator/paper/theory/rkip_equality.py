"""Theorem 2 as numbers: the RKIP loss, written in kernels, is the reconstruction loss, written in parameters."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pandas as pd
import torch
from pydantic import Field
from torch import Tensor, nn

from attacks.interface.devices import choose_device
from attacks.interface.seeding import torch_generator
from attacks.kernel.empirical import empirical_ntk, kernel_duals
from attacks.ntk.objective import make_objective
from clients.config import Count, Positive, Section
from clients.distillation.losses import RKIP
from simulator.paper.experiment import ExperimentRun, Outcome, clocked, experiment, num_private
from simulator.paper.pictures import draw_lines
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner

TIMED_IMAGES = 5  # from which the cost of more is told


class RkipSettings(Section):
    """distilled: sizes of the set S, random images with labels ±1."""

    distilled: list[Count] = Field([2, 5, 10, 20])
    image_std: Positive = 0.2


def cost(run: ExperimentRun, settings: RkipSettings) -> float:
    """From a few images and the smallest set: kernels grow with the square of all images."""
    cell, least = run.cells[0], min(settings.distilled)
    private = num_private(cell)
    few = min(TIMED_IMAGES, private)
    timed = replace(cell, scenario=cell.scenario.with_images(few))
    seconds = clocked(loss_table, timed, settings.model_copy(update={"distilled": [least]}))
    return len(run.cells) * seconds * sum((private + size) ** 2 for size in settings.distilled) / (few + least) ** 2


@experiment("theorem2", "the RKIP loss is the reconstruction loss", RkipSettings, cost)
def theorem2(run: ExperimentRun, settings: RkipSettings) -> Outcome:
    data = pd.concat([loss_table(cell, settings) for cell in run.cells], ignore_index=True)
    for name in ("rkip_residual", "rkip_label", "rkip_class"):
        data[f"{name}_error"] = (data[name] / data.reconstruction - 1).abs()
    statistics = {
        "residual_error": data.rkip_residual_error.max(),
        "class_error": data.rkip_class_error.max(),
        "label_error_at_0": data[data.initial_output_0].rkip_label_error.max(),
        "label_error_elsewhere": data[~data.initial_output_0].rkip_label_error.median(),
        "sets": len(data),
    }
    long = data.melt(["distilled", "initial_output_0"], ["reconstruction", "rkip_residual", "rkip_label"], "loss")
    draw = partial(draw_lines, long, "distilled", "value", "loss", col="initial_output_0", log_x=True)
    return Outcome(data, statistics, draw)


def loss_table(cell: Cell, settings: RkipSettings) -> pd.DataFrame:
    """A row for each size of S, and network with outputs of its own or 0 at initialization."""
    owner, rows = Owner.of(cell.scenario).on(choose_device("auto")), []
    model = owner.network("theorem2").double()
    generator = torch_generator(cell.scenario.seed, "theorem2")
    for size in settings.distilled:
        images = torch.randn((size, *owner.data.shape), generator=generator, dtype=torch.float64).to(
            owner.images.device
        )
        labels = torch.tensor([1.0, -1.0]).repeat(size)[:size, None].to(images)
        for zero in (False, True):
            network = Centered(model) if zero else model
            losses = both_losses(network, owner, images * settings.image_std, labels)
            rows.append({"seed": cell.scenario.seed, "distilled": size, "initial_output_0": zero, **losses})
    return pd.DataFrame(rows)


def both_losses(model: nn.Module, owner: Owner, images: Tensor, labels: Tensor) -> dict[str, float]:
    """The reconstruction loss in parameters, and RKIP in kernels: with residuals for labels, with labels, and the
    class that distills. Δθ and the duals of S are those of kernel regression at θ₀."""
    state = model.state_dict()
    private, targets, kernel = owner.images.double(), owner.targets.double(), partial(empirical_ntk, model, state)
    with torch.no_grad():
        residual, wanted = targets - model(private), labels - model(images)
    of_private, cross, of_images = kernel(private), kernel(private, images), kernel(images)
    trained = {name: state[name] for name, parameter in model.named_parameters() if parameter.requires_grad}
    objective = make_objective(model, owner.data.shape, trained, [state])
    delta = objective.gradient_sum(private, kernel_duals(of_private, residual)[None], None)
    objective, duals = make_objective(model, owner.data.shape, delta, [state]), kernel_duals(of_images, wanted)
    return {
        "reconstruction": float(objective.loss(images, duals[None], None).detach()),
        "rkip_residual": rkip(of_private, cross, of_images, residual, wanted),
        "rkip_label": rkip(of_private, cross, of_images, targets, labels),
        "rkip_class": float(RKIP(kernel, private, residual, 0.0)(images, wanted)),
    }


def rkip(private: Tensor, cross: Tensor, distilled: Tensor, targets: Tensor, labels: Tensor) -> float:
    """‖y_T − K_TS α_S‖² in the norm of K_TT⁻¹, plus α_Sᵀ (K_SS − K_ST K_TT⁻¹ K_TS) α_S, as theorem 2 writes it.

    private: K_TT. cross: K_TS. distilled: K_SS. targets: y_T. labels: y_S.
    """
    duals = torch.linalg.solve(distilled, labels)
    error = targets - cross @ duals
    conditional = distilled - cross.T @ torch.linalg.solve(private, cross)
    return float((error * torch.linalg.solve(private, error)).sum() + (duals * (conditional @ duals)).sum())


class Centered(nn.Module):
    """f_θ − f_θ₀ with θ₀ the parameters at construction: the same kernel, and output 0 (Chizat et al. 2019)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.start = deepcopy(model.state_dict())

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            initial = torch.func.functional_call(self.model, self.start, (images,))
        return self.model(images) - initial
