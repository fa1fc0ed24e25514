"""Theorem 1 as numbers: at infinite width, for data on the unit sphere, a loss of 0 gives back every image."""

import math
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from attacks.interface.seeding import torch_generator
from attacks.kernel.empirical import kernel_duals
from attacks.kernel.infinite import InfiniteNTK
from attacks.scoring.matching import matched_l2
from clients.config import Count, Positive, Section
from clients.models import option_values
from simulator.paper.base import Claim, Job, Report, Result, Strip, experiment
from simulator.paper.costs import seconds_per_step
from simulator.paper.measures import seeds
from simulator.paper.pictures import draw_lines
from simulator.tools.distillation import Owner

TRACE_EVERY = 100
RIDGE = 1e-10  # of kernels in float64, in units of their mean diagonal


class SphereSettings(Section):
    """candidates: of the reconstruction, as a multiple of the private images."""

    candidates: Positive = 2.0
    iterations: Count = 3000
    learning_rate: Positive = 0.02


@dataclass(frozen=True, eq=False)
class Embedding:
    """The measure Σ_j α_j δ_{x_j} in the kernel's feature space: what an infinitely wide network sends.

    images: (N, C, H, W) on the unit sphere, float64. duals: (N, K).
    """

    kernel: InfiniteNTK
    images: Tensor
    duals: Tensor

    def squared_norm(self) -> Tensor:
        return (self.duals * (self.kernel(self.images) @ self.duals)).sum()

    def discrepancy(self, images: Tensor) -> Tensor:
        """The squared MMD to the nearest signed measure on `images` (M, C, H, W): its best duals are K⁻¹ K_ST α_T.

        A scalar, differentiable in the images (Loo et al. 2024, proof of theorem 1).
        """
        cross = self.kernel(images, self.images) @ self.duals
        return self.squared_norm() - (cross * kernel_duals(self.kernel(images), cross, RIDGE)).sum()


def cost(job: Job) -> float:
    """From the largest data set: kernels grow with the square of the images."""
    settings = job.settings(SphereSettings)
    counts = {cell.name: cell.scenario.partition.images_of(0) or 0 for cell in job.scenario.cells()}
    largest = max(job.scenario.cells(), key=lambda cell: counts[cell.name])
    target = on_sphere_target(Owner.of(largest.scenario))

    def short(steps: int) -> None:
        minimize(target, settings.model_copy(update={"iterations": steps}), torch.Generator(), lambda *_: None, "")

    work = sum(count**2 for count in counts.values()) / max(counts.values()) ** 2
    return seconds_per_step(short) * settings.iterations * work


@experiment("theorem1", "infinite width, unit sphere: minimize the MMD, recover every image", SphereSettings, cost)
def theorem1(job: Job) -> Result:
    settings = job.settings(SphereSettings)
    cells = job.scenario.cells()
    parts, pairs = [], []
    for cell in cells:
        owner = Owner.of(cell.scenario)
        target = on_sphere_target(owner)
        generator = torch_generator(cell.scenario.seed, "theorem1")
        trace, found = minimize(target, settings, generator, job.report, cell.name)
        parts.append(trace.assign(num_private=len(target.images), seed=cell.scenario.seed))
        pairs.append((cell.name, target.images, found))
    data = pd.concat(parts, ignore_index=True)
    last = data.groupby(["num_private", "seed"]).last()
    reached = last[last.mmd <= 1e-3]
    claims = [
        Claim(
            "a loss of 0 means that the whole training set is recovered",
            "theorem 1",
            "the embedding of measures is injective: at infinite width, loss 0 gives back every image",
            f"MMD² / ‖μ‖² {last.mmd.min():.1e} to {last.mmd.max():.1e}, at most 1e-3 in {len(reached)} of {len(last)} "
            f"data sets ({seeds(data)}); there the worst image lies {reached.worst_l2.max():.1e} off, images have norm "
            "1; holds where that is at most 0.1 and some data set gets there",
            len(reached) > 0 and bool(reached.worst_l2.max() <= 0.1),
        ),
        Claim(
            "minimizing the loss reaches it",
            "theorem 1",
            "not claimed: the theorem speaks of the minimum, not of the way there",
            f"{len(reached)} of {len(last)}; mean distance of all images {last.mean_l2.mean():.1e}, of random starts "
            f"{data[data.iteration == 0].mean_l2.mean():.2f}; holds where all get there",
            len(reached) == len(last),
        ),
    ]
    melted = data.melt(["iteration", "num_private", "seed"], ["mmd", "worst_l2", "mean_l2"], "measure")
    return Result(
        data,
        claims,
        lambda path: draw_lines(melted, path, "iteration", "value", "measure", "num_private", log_y=True),
        lambda: [strip(*pair) for pair in pairs],
    )


def on_sphere(images: Tensor) -> Tensor:
    """(N, C, H, W) with norm 1 each."""
    return images / images.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


def on_sphere_target(owner: Owner) -> Embedding:
    """α = K⁻¹ y for the owner's images, scaled to norm 1; NTK parameterization with biases, universal on the sphere."""
    images = on_sphere(owner.images.double())
    kernel = InfiniteNTK(option_values(owner.scenario.model)["depth"], parameterization="ntk")
    return Embedding(kernel, images, kernel_duals(kernel(images), owner.targets.double(), RIDGE))


def minimize(
    target: Embedding, settings: SphereSettings, generator: torch.Generator, report: Report, name: str
) -> tuple[pd.DataFrame, Tensor]:
    """(MMD² relative to the target's norm and distances as they fall, the images found), by Adam on the sphere."""
    count = max(1, round(settings.candidates * len(target.images)))
    shape = (count, *target.images.shape[1:])
    points = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    with torch.no_grad():
        points.copy_(on_sphere(points))
    optimizer = torch.optim.Adam([points], lr=settings.learning_rate / math.prod(shape[1:]) ** 0.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.iterations)
    whole, rows = float(target.squared_norm()), []
    for i in range(settings.iterations + 1):
        loss = target.discrepancy(on_sphere(points)) / whole
        if i % TRACE_EVERY == 0 or i == settings.iterations:
            l2, _ = matched_l2(target.images, on_sphere(points.detach()))
            rows.append({"iteration": i, "mmd": float(loss.detach()), "worst_l2": l2.max(), "mean_l2": l2.mean()})
            report(f"{name}, MMD² {rows[-1]['mmd']:.1e}", i, settings.iterations)
        (points.grad,) = torch.autograd.grad(loss, points)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            points.copy_(on_sphere(points))
    return pd.DataFrame(rows), on_sphere(points.detach())


def strip(name: str, private: Tensor, found: Tensor) -> Strip:
    """Every image in its own grey scale: on the sphere there are no pixels in [0, 1]."""
    l2, match = matched_l2(private, found)
    order = l2.argsort()
    return Strip(name, stretched(private[order]), stretched(found[match[order]]), l2[order])


def stretched(images: Tensor) -> Tensor:
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp_min(1e-12)
