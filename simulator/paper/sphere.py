"""Theorem 1 as numbers: at infinite width, for data on the unit sphere, a loss of 0 gives back every image."""

import math
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from attacks.interface.torch_tools import Adam, choose_device, torch_generator
from attacks.kernel.empirical import kernel_duals
from attacks.kernel.infinite import InfiniteNTK
from attacks.scoring.images import matched_l2
from clients.config import Count, Positive, Section
from clients.models import option_values
from simulator.paper.claims import Statistics
from simulator.paper.experiment import ExperimentRun, cell_experiment, num_private, seconds_per_step
from simulator.paper.measures import draw_columns
from simulator.scenario.scenario import Cell
from simulator.tools.distillation import Owner

TRACE_EVERY = 100
REACHED = 1e-3  # of MMD² / ‖μ‖², from which on the minimum counts as reached
RIDGE = 1e-10  # of kernels in float64, in units of their mean diagonal


class SphereSettings(Section):
    """The section `settings` of the experiment's file.

    candidates: of the reconstruction, as a multiple of the private images.
    """

    candidates: Positive = 2.0
    iterations: Count = 3000
    learning_rate: Positive = 0.02


@dataclass(frozen=True, eq=False)
class Embedding:
    """The measure Σ_j α_j δ_{x_j} in the kernel's feature space: what an infinitely wide network sends.

    images: (N, C, H, W) on the unit sphere, float64.
    duals: (N, K).
    """

    kernel: InfiniteNTK
    images: Tensor
    duals: Tensor

    def squared_norm(self) -> Tensor:
        return (self.duals * (self.kernel(self.images) @ self.duals)).sum()

    def discrepancy(self, images: Tensor) -> Tensor:
        """Return the squared MMD to the nearest signed measure on images (M, C, H, W): its duals are K⁻¹ K_ST α_T.

        It is a scalar, differentiable in the images (Loo et al. 2024, proof of theorem 1).
        """
        cross = self.kernel(images, self.images) @ self.duals
        return self.squared_norm() - (cross * kernel_duals(self.kernel(images), cross, RIDGE)).sum()


def cost(run: ExperimentRun, settings: SphereSettings) -> float:
    """Return the seconds, from the largest data set: kernels grow with the square of the images."""
    largest = max(run.cells, key=num_private)
    target, generator = on_sphere_target(Owner.of(largest.scenario)), torch.Generator()
    step = seconds_per_step(lambda n: minimize(target, settings.model_copy(update={"iterations": n}), generator))
    work = sum(num_private(cell) ** 2 for cell in run.cells) / num_private(largest) ** 2
    return step * settings.iterations * work


def recovery_statistics(data: pd.DataFrame) -> Statistics:
    """Tell where minimization ends, and how far images then lie from private ones. data: traces of `minimize`."""
    last = data.groupby(["num_private", "seed"]).last()
    reached = last[last.mmd <= REACHED]
    return {
        "mmd": [last.mmd.min(), last.mmd.max()],
        "enough": REACHED,
        "num_reached": len(reached),
        "num_sets": len(last),
        "worst_l2": reached.worst_l2.max(),
        "mean_l2": last.mean_l2.mean(),
        "start_l2": data[data.iteration == 0].mean_l2.mean(),
    }


def on_sphere(images: Tensor) -> Tensor:
    """Scale images (N, C, H, W) to norm 1 each."""
    return images / images.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


def on_sphere_target(owner: Owner) -> Embedding:
    """Return α = K⁻¹ y for the owner's images at norm 1; NTK parameterization with biases, universal on the sphere."""
    owner = owner.on(choose_device("auto"))
    images = on_sphere(owner.images.double())
    kernel = InfiniteNTK(option_values(owner.scenario.model)["depth"], parameterization="ntk")
    return Embedding(kernel, images, kernel_duals(kernel(images), owner.targets.double(), RIDGE))


def minimize(target: Embedding, settings: SphereSettings, generator: torch.Generator) -> tuple[pd.DataFrame, Tensor]:
    """Minimize by Adam on the sphere. Return (MMD² over the target's norm and distances as they fall, the images)."""
    count = max(1, round(settings.candidates * len(target.images)))
    shape = (count, *target.images.shape[1:])
    points = torch.randn(shape, generator=generator, dtype=torch.float64).to(target.images.device).requires_grad_()
    with torch.no_grad():
        points.copy_(on_sphere(points))
    optimizer = Adam([points], lr=settings.learning_rate / math.prod(shape[1:]) ** 0.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.iterations)
    whole, rows = float(target.squared_norm()), []
    for i in range(settings.iterations + 1):
        loss = target.discrepancy(on_sphere(points)) / whole
        if i % TRACE_EVERY == 0 or i == settings.iterations:
            l2, _ = matched_l2(target.images.cpu(), on_sphere(points.detach()).cpu())
            rows.append({"iteration": i, "mmd": float(loss.detach()), "worst_l2": l2.max(), "mean_l2": l2.mean()})
        (points.grad,) = torch.autograd.grad(loss, points)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            points.copy_(on_sphere(points))
    return pd.DataFrame(rows), on_sphere(points.detach())


COLUMNS = ["mmd", "worst_l2", "mean_l2"]


@cell_experiment(
    "theorem1",
    "infinite width, unit sphere: minimize the MMD, recover every image",
    recovery_statistics,
    partial(draw_columns, x="iteration", columns=COLUMNS, hue="measure", col="num_private", log_y=True),
    SphereSettings,
    cost,
)
def recovered(cell: Cell, settings: SphereSettings) -> pd.DataFrame:
    target = on_sphere_target(Owner.of(cell.scenario))
    trace, _ = minimize(target, settings, torch_generator(cell.scenario.seed, "theorem1"))
    return trace.assign(num_private=len(target.images), seed=cell.scenario.seed)
