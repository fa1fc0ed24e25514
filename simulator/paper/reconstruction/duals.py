"""Figures 7 and 11: what the duals say of an image, how easily it is reconstructed and how slowly it was fitted."""

from pathlib import Path

import pandas as pd
import torch

from attacks.kernel.empirical import empirical_ntk, kernel_duals
from attacks.kernel.linearization import relative_residual
from clients.models import option_values
from clients.training import planned_steps
from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.costs import seconds_per_step
from simulator.paper.local import Fit, fit
from simulator.paper.measures import at_least, at_most, score_table, seeds, spearman, strips
from simulator.paper.pictures import draw_scatter
from simulator.results.record import Record
from simulator.scenario.scenario import Cell, Scenario
from simulator.tools.distillation import Owner

NETWORK = ["num_private", "width", "dynamics", "seed"]
AGREES = 0.9  # the correlation from which on we say that two ways to get α agree
PROTECTED = 0.9  # of the distance of who knows nothing, from which on an image counts as protected
RIDGE = 1e-9  # of kernels in float64: regression without a ridge, and safe from rounding


@experiment("figure7", "the duals against reconstruction error, image by image")
def figure7(job: Job) -> Result:
    record = job.sweep()
    data = dual_table(record)
    each = data.groupby(NETWORK)
    ranks = pd.Series({key: spearman(network, "alpha", "l2") for key, network in each})
    quarters = pd.DataFrame([weak_and_strong(network) for _, network in each])
    protected = float((quarters.weak > PROTECTED * quarters.floor).mean())
    claims = [
        Claim(
            "images with large duals are reconstructed better",
            "section 6.1, figure 7",
            "larger |α| contribute more to Δθ and are more easily reconstructed",
            f"Spearman of |α| at infinite width and L2 within a network {ranks.mean():.2f} (from {ranks.min():.2f} to "
            f"{ranks.max():.2f}, {len(ranks)} networks, {seeds(data)}); holds from -0.5 down",
            at_most(ranks.mean(), -0.5),
        ),
        Claim(
            "images with small duals are protected",
            "section 6.1, figure 7",
            "images with small |α| are protected from reconstruction",
            f"mean L2 of the quarter with the smallest |α| {quarters.weak.mean():.2f}, of that with the largest "
            f"{quarters.strong.mean():.2f}, of who knows nothing {quarters.floor.mean():.2f}; the first is above "
            f"{PROTECTED:.0%} of the last in {protected:.0%} of networks; holds from 80 % of them on",
            protected >= 0.8,
        ),
    ]
    scores = score_table(record)
    return Result(
        data,
        claims,
        lambda path: draw_scatter(data, path, "alpha", "l2", "width", "num_private", "dynamics"),
        lambda: strips(record, scores[scores.seed == scores.seed.min()]),
    )


def dual_table(record: Record) -> pd.DataFrame:
    """A row per private image: |α| = |K⁻¹ y| with the kernel at infinite width, l2, and `found_dual`, the attack's."""
    settings = score_table(record).set_index("cell")
    parts = []
    for name, own in record.samples.groupby("cell"):
        owner = Owner.of(record.cells[name].scenario)
        alpha = kernel_duals(owner.kernel(owner.images.double()), owner.targets.double(), RIDGE).norm(dim=1)
        part = own.assign(alpha=alpha.numpy()[own.image], found_dual=own.dual)
        parts.append(part.assign(**{column: settings.loc[name, column] for column in NETWORK}))
    columns = [*NETWORK, "image", "alpha", "found_dual", "l2", "floor_l2", "mean_image_l2"]
    return pd.concat(parts, ignore_index=True)[columns]


def weak_and_strong(network: pd.DataFrame) -> dict[str, float]:
    """Mean L2 of the images in the lowest and in the highest quarter of |α|, and the `floor` of the lowest: of public
    images or of their mean, whichever are nearer."""
    low, high = network.alpha.quantile([0.25, 0.75])
    weak, strong = network[network.alpha <= low], network[network.alpha >= high]
    floor = float(weak[["floor_l2", "mean_image_l2"]].mean().min())
    return {"weak": float(weak.l2.mean()), "strong": float(strong.l2.mean()), "floor": floor}


def training_cost(job: Job) -> float:
    """The largest network as often as there are networks, trained to its limit of steps."""
    cells = job.scenario.cells()
    cell = max(cells, key=lambda cell: (cell.scenario.partition.images_of(0) or 0) * width_of(cell.scenario) ** 2)
    owner, training = Owner.of(cell.scenario), cell.scenario.training

    def short(steps: int) -> None:
        fit(cell, owner, training.model_copy(update={"steps": steps}))

    return len(cells) * seconds_per_step(short) * planned_steps(training, len(owner.images))


@experiment("figure11", "duals by kernel regression against accumulated residuals", cost=training_cost)
def figure11(job: Job) -> Result:
    cells = job.scenario.cells()
    parts, errors = [], []
    for done, cell in enumerate(cells):
        job.report(f"training {cell.name}", done, len(cells))
        owner = Owner.of(cell.scenario)
        trained = fit(cell, owner)
        parts.append(accumulated_table(cell, owner, trained))
        errors.append({**settings_of_fit(cell), "unexplained": unexplained(owner, trained)})
    data, sums = pd.concat(parts, ignore_index=True), pd.DataFrame(errors)
    each = data.groupby(NETWORK)
    found = pd.DataFrame(
        {
            # of magnitudes: the signs are those of the targets, and would agree whatever else does not
            "finite": each.apply(lambda frame: frame.accumulated.abs().corr(frame.finite_width.abs())),
            "infinite": each.apply(lambda frame: frame.accumulated.abs().corr(frame.infinite_width.abs())),
        }
    ).reset_index()
    frozen = sums[sums.dynamics == "linearized"].unexplained.max()
    linear, standard = (found[found.dynamics == name] for name in ("linearized", "standard"))
    claims = [
        Claim(
            "the duals are the accumulated residuals",
            "appendix C.1, figure 11",
            "α_j is proportional to the integral of y_j − f(x_j) over training",
            f"linearized training: ‖Δθ − Σ_j α_j ∇f(x_j)‖ / ‖Δθ‖ at most {frozen:.1e} over {len(linear)} networks with "
            f"α the accumulated residuals, {seeds(data)}; holds to 1e-3 (training is in float32)",
            at_most(frozen, 1e-3),
        ),
        agreement("linearized", linear, "finite", "α = K₀⁻¹(y − f₀)"),
        agreement("standard", standard, "finite", "α = K₀⁻¹(y − f₀)"),
        agreement("standard", standard, "infinite", "α = K⁻¹y at infinite width"),
    ]
    return Result(data, claims, lambda path: draw(data, path))


def agreement(dynamics: str, found: pd.DataFrame, column: str, formula: str) -> Claim:
    return Claim(
        f"computed duals agree with accumulated residuals, {dynamics} training",
        "appendix C.1, figure 11",
        "verified experimentally: the two agree up to a scale",
        f"{formula}: Pearson correlation of |α| {found[column].mean():.3f}, at least {found[column].min():.3f} over "
        f"{len(found)} networks; holds where the mean is {AGREES} or more",
        at_least(found[column].mean(), AGREES),
    )


def width_of(scenario: Scenario) -> int:
    """Units of the network's hidden layers; 0 for one without that option."""
    return option_values(scenario.model).get("width", 0)


def settings_of_fit(cell: Cell) -> dict[str, object]:
    scenario = cell.scenario
    values = (scenario.partition.images, width_of(scenario), scenario.training.dynamics, scenario.seed)
    return dict(zip(NETWORK, values, strict=True))


def accumulated_table(cell: Cell, owner: Owner, trained: Fit) -> pd.DataFrame:
    """A row per image: α summed up in training, by regression with the kernel at θ₀, and at infinite width."""
    images, targets = owner.images.double(), owner.targets.double()
    state = {name: value.double() for name, value in trained.initial.items()}
    model = trained.model.double()
    with torch.no_grad():
        initial = torch.func.functional_call(model, state, (images,))
    finite = kernel_duals(empirical_ntk(model, state, images), targets - initial, RIDGE)
    infinite = kernel_duals(owner.kernel(images), targets, RIDGE)
    columns = {"accumulated": trained.duals, "finite_width": finite, "infinite_width": infinite}
    return pd.DataFrame(
        {
            **settings_of_fit(cell),
            "image": range(len(images)),
            **{name: value[:, 0].double().numpy() for name, value in columns.items()},
            "train_loss": trained.report.last_loss,
        }
    )


def unexplained(owner: Owner, trained: Fit) -> float:
    """‖Δθ − Σ_j α_j ∇f_θ₀(x_j)‖ / ‖Δθ‖ with the duals summed up in training."""
    state = {name: value.double() for name, value in trained.initial.items()}
    model, duals = trained.model.double(), trained.duals.double()
    return relative_residual(model, state, trained.delta, owner.images.double(), duals)


def draw(data: pd.DataFrame, path: Path) -> None:
    """|α|, each on a scale of its own: the largest of a network is 1."""
    names = ["accumulated", "finite_width", "infinite_width"]
    data = data.assign(**{name: data[name].abs() for name in names})
    scaled = data.assign(**{name: data[name] / data.groupby(NETWORK)[name].transform("max") for name in names})
    kinds = scaled.melt([*NETWORK, "accumulated"], names[1:], "kernel", "computed")
    draw_scatter(kinds, path, "computed", "accumulated", "width", None, "kernel", log=False)
