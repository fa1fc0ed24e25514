"""Figures 7 and 11: what the duals say of an image, how easily it is reconstructed and how slowly it was fitted."""

from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch

from attacks.kernel.empirical import empirical_ntk, kernel_duals
from attacks.kernel.linearization import relative_residual
from clients.models import option_values
from clients.training import planned_steps
from simulator.paper.claims import Signs, Statistics
from simulator.paper.costs import seconds_per_step
from simulator.paper.experiment import ExperimentRun, Outcome, experiment, num_private
from simulator.paper.measures import first_seed_strips, score_table, spearman
from simulator.paper.pictures import draw_scatter
from simulator.paper.reconstruction.local_training import Fit, fit
from simulator.results.record import Record
from simulator.scenario.scenario import Cell, Scenario
from simulator.tools.distillation import Owner

DUALS = ["accumulated", "finite_width", "infinite_width"]
NETWORK = ["num_private", "width", "dynamics", "seed"]
PROTECTED = 0.9  # share of the uninformed baseline's distance from which on images count as protected
RIDGE = 1e-9  # of kernels in float64: regression without a ridge, and safe from rounding


@experiment("figure7", "the duals against reconstruction error, image by image")
def figure7(run: ExperimentRun) -> Outcome:
    record = run.sweep()
    data = dual_table(record)
    draw = partial(draw_scatter, data, "alpha", "l2", style="dynamics")
    return Outcome(data, dual_statistics(data), draw, partial(first_seed_strips, record, score_table(record)))


def dual_statistics(data: pd.DataFrame) -> Statistics:
    """Within each network: the rank correlation of |α| and L2, and L2 of the quarters with the smallest and largest."""
    networks = [network for _, network in data.groupby(NETWORK)]
    ranks = pd.Series([spearman(network, "alpha", "l2") for network in networks])
    quarters = pd.DataFrame([weak_and_strong(network) for network in networks])
    return {
        "rank": ranks.mean(),
        "rank_range": [ranks.min(), ranks.max()],
        "networks": len(ranks),
        **quarters.mean(),
        "protected_from": PROTECTED,
        "protected": Signs.of(quarters.weak > PROTECTED * quarters.floor),
    }


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
    """Mean L2 of the images in the lowest (`weak`) and the highest (`strong`) quarter of |α|, and the uninformed
    baseline of the lowest (`floor`): public images or their mean, whichever are nearer."""
    low, high = network.alpha.quantile([0.25, 0.75])
    weak, strong = network[network.alpha <= low], network[network.alpha >= high]
    floor = float(weak[["floor_l2", "mean_image_l2"]].mean().min())
    return {"weak": float(weak.l2.mean()), "strong": float(strong.l2.mean()), "floor": floor}


def training_cost(run: ExperimentRun) -> float:
    """The largest network as often as there are networks, trained to its limit of steps."""
    cell = max(run.cells, key=lambda cell: num_private(cell) * width_of(cell.scenario) ** 2)
    owner, training = Owner.of(cell.scenario), cell.scenario.training

    def short(steps: int) -> None:
        fit(cell, owner, training.model_copy(update={"steps": steps}))

    return len(run.cells) * seconds_per_step(short) * planned_steps(training, len(owner.images))


@experiment("figure11", "duals by kernel regression against accumulated residuals", cost=training_cost)
def figure11(run: ExperimentRun) -> Outcome:
    parts, errors = [], []
    for done, cell in enumerate(run.cells):
        run.report(f"training {cell.name}", done, len(run.cells))
        owner = Owner.of(cell.scenario)
        trained = fit(cell, owner)
        parts.append(accumulated_table(cell, owner, trained))
        errors.append({**settings_of_fit(cell), "unexplained": unexplained(owner, trained)})
    data = pd.concat(parts, ignore_index=True)
    return Outcome(data, accumulated_statistics(data, pd.DataFrame(errors)), partial(draw, data))


def accumulated_statistics(data: pd.DataFrame, sums: pd.DataFrame) -> Statistics:
    """How well Δθ is explained, and the correlation within each network of the magnitudes of duals: their signs are
    those of the targets, and would agree whatever else does not. data: as of `accumulated_table`."""
    sizes = data.assign(**{name: data[name].abs() for name in DUALS})
    networks = sizes.groupby(NETWORK)
    agreement = {name: networks.apply(lambda frame, name=name: frame.accumulated.corr(frame[name])) for name in DUALS}
    frozen = sums[sums.dynamics == "linearized"]
    found: dict[str, object] = {"unexplained": frozen.unexplained.max(), "linearized_networks": len(frozen)}
    for dynamics, name in (("linearized", DUALS[1]), ("standard", DUALS[1]), ("standard", DUALS[2])):
        own = agreement[name][agreement[name].index.get_level_values("dynamics") == dynamics]
        found[f"{dynamics}_{name}"] = {"agreement": own.mean(), "least": own.min(), "networks": len(own)}
    return found


def width_of(scenario: Scenario) -> int:
    """Units of the network's hidden layers; 0 for one without that option."""
    return option_values(scenario.model).get("width", 0)


def settings_of_fit(cell: Cell) -> dict[str, object]:
    """The columns that tell one network from another."""
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
    columns = dict(zip(DUALS, (trained.duals, finite, infinite), strict=True))
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


def draw(data: pd.DataFrame) -> plt.Figure:
    """|α|, each on a scale of its own: the largest of a network is 1."""
    data = data.assign(**{name: data[name].abs() for name in DUALS})
    scaled = data.assign(**{name: data[name] / data.groupby(NETWORK)[name].transform("max") for name in DUALS})
    kinds = scaled.melt([*NETWORK, "accumulated"], DUALS[1:], "kernel", "computed")
    return draw_scatter(kinds, "computed", "accumulated", style="kernel", size=None, log_x=False)
