"""The experiment `hessian`: Hessian norm, change of the kernel and change of the parameters against width.

The claims are those of the rebuttal of Liu, Zhu and Belkin (2020): the kernel is constant where the model's Hessian is
small, and that is not lazy training.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from pydantic import Field

from clients.config import Count, Positive, Section
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, clocked, experiment
from simulator.paper.measures import by_seed
from simulator.paper.theory.constancy import Network, measure, measure_loss, measure_training
from simulator.reports.drawing import themed
from simulator.results.disk import write_atomically

COLUMNS = "width output activation seed hessian_norm kernel_change".split()
SHARE = 0.2  # of its first value, to which training brings a loss
BOUND_WIDTH = 1024  # up to which the bound is measured: it takes the Hessian at three points
TIMED_WIDTH = 1024  # where the cost of all others is read off
STEADY = ("tanh", "softmax", "bottleneck")  # outputs measured with one hidden activation, tanh
HINGE = "relu"  # an output that is measured like them, in claims of its own
OPEN = ("softmax", "maxout")  # hidden non-linearities that the paper leaves open
BOUND = [
    "remainder",
    "sup_hessian",
    "crossed",
    "kernel_change_within",
]  # columns of the networks that are narrow enough for them
ENDS = {"": "slope", "_narrowest": "narrowest", "_widest": "widest"}  # of statistics' names, to columns of slopes
LOSSES = ("mse", "cross_entropy", "hinge")
TITLES = (
    "Hessian norm ‖H‖₂",
    "change of the kernel, at one ‖Δθ‖₂ for all widths",
    "change of the parameters in training",
)
CASES = [*(("linear", loss) for loss in LOSSES), ("sigmoid", "mse")]  # output and loss of the networks trained


class HessianSettings(Section):
    widths: list[Count] = Field(min_length=2)
    activations: list[str] = Field(min_length=1, description="hidden ones, behind linear and sigmoid outputs")
    open_widths: list[Count] = Field(min_length=2)
    training_widths: list[Count] = Field(min_length=2)
    seeds: Count = 5
    training_activation: str = Field("gelu", description="hidden one of the networks trained under every loss")
    radius: Positive = Field(0.5, description="‖Δθ‖₂ at which the change of the kernel is measured")
    open_radius: Positive = Field(0.1, description="the same for hidden softmax and maxout: softmax fits within 0.5")


Measurement = tuple[str, Network, Callable[[], dict[str, Any]]]
"""(the table that it is for, the network, what measures it)."""


def planned(settings: HessianSettings) -> list[Measurement]:
    """norms: each network under a loss. losses: those with a linear output, up to `radius` under each. open: hidden
    softmax and maxout. bound: all others, up to `radius`."""
    activation, widths, seeds = settings.training_activation, settings.training_widths, settings.seeds
    plain = grid(widths, [(output, activation) for output in ("linear", "sigmoid")], seeds)
    free = grid(widths, [("linear", activation)], seeds, output_bias=True)
    trained = [(network, loss) for network in plain for output, loss in CASES if output == network.output]
    trained += [(network, LOSSES[0]) for network in free]
    pairs = [(output, activation) for output in ("linear", "sigmoid") for activation in settings.activations]
    undecided = grid(settings.open_widths, [("linear", activation) for activation in OPEN], seeds)
    decided = grid(settings.widths, [*pairs, *((output, "tanh") for output in (*STEADY, HINGE))], seeds)

    def constancy(part: str, network: Network, radius: float) -> Measurement:
        return part, network, partial(measure, network, radius, bound=network.width <= BOUND_WIDTH)

    return [
        *(("norms", network, partial(measure_training, network, loss, SHARE)) for network, loss in trained),
        *(
            ("losses", network, partial(measure_loss, network, loss, settings.radius))
            for network, loss in trained
            if network.output == "linear" and not network.output_bias
        ),
        *(constancy("open", network, settings.open_radius) for network in undecided),
        *(constancy("bound", network, settings.radius) for network in decided),
    ]


def grid(
    widths: Sequence[int], kinds: Sequence[tuple[str, str]], seeds: int, output_bias: bool = False
) -> list[Network]:
    """One network for each width, (output, activation) and seed."""
    return [Network(width, *kind, seed, output_bias) for width in widths for kind in kinds for seed in range(seeds)]


def work(plan: Sequence[Measurement]) -> int:
    """Each costs about the square of its width."""
    return sum(network.width**2 for _, network, _ in plan)


def cost(_: ExperimentRun, settings: HessianSettings) -> float:
    """From one network, by the square of the widths."""
    seconds = clocked(measure, Network(TIMED_WIDTH, "linear", settings.activations[0], 0), settings.radius, True)
    return seconds * work(planned(settings)) / TIMED_WIDTH**2


@experiment("hessian", "constancy of the kernel against width, linear and non-linear outputs", HessianSettings, cost)
def hessian(run: ExperimentRun, settings: HessianSettings) -> Outcome:
    plan, rows = planned(settings), defaultdict(list)
    for count, (part, network, found) in enumerate(plan, start=1):
        rows[part].append({**vars(network), **found()})
        what = f"{part}: {network.output} output, {network.activation}, width {network.width}"
        run.report(what, work(plan[:count]), work(plan))
    tables = {part: pd.DataFrame(rows[part]) for part in ("bound", "open", "norms", "losses")}
    slopes = slope_table(*tables.values())
    for name, frame in {"slopes": slopes, **tables}.items():
        write_atomically(run.out / f"{name}.csv", frame.to_csv(index=False))

    def statistics(*parts: pd.DataFrame) -> Statistics:
        return hessian_statistics(parts[0], slope_table(*parts), settings.radius)

    drawn = partial(draw, tables["bound"], tables["open"], tables["norms"], slopes)
    return Outcome(
        tables["bound"][COLUMNS],
        statistics(*tables.values()),
        drawn,
        by_seed=by_seed(statistics, *tables.values()),
    )


def hessian_statistics(table: pd.DataFrame, slopes: pd.DataFrame, radius: float) -> Statistics:
    """All statistics. table: one row per network. slopes: as of `slope_table`. radius: ‖Δθ‖₂ of the table."""
    table = table.reindex(columns=[*table.columns.drop(BOUND, errors="ignore"), *BOUND])  # wide networks have none
    found: dict[str, object] = {"radius": radius, "share": SHARE}
    for quantity, name in (("kernel_change", "kernel"), ("hessian_norm", "hessian")):
        data = select(slopes, quantity)
        for output in ("linear", "sigmoid"):
            rows = data[data.output == output].set_index("activation")
            found |= {f"{name}_{output}": rows.slope, f"{name}_{output}_widest": [rows.widest.min(), rows.widest.max()]}
        found[f"{name}_others"] = data[data.output.isin(STEADY)].set_index("output").slope
    found |= hinge_statistics(table, slopes)
    bounds = table.remainder / (0.5 * table.sup_hessian * radius**2)
    smooth = bounds[(table.activation != "relu") & (table.output != HINGE) & table.remainder.notna()]
    found |= {"bounds": list(smooth), "smooth_networks": len(smooth)}
    found |= {"largest_bound": smooth.max(), "median_bound": smooth.median()}
    kinked = bounds[(table.activation == "relu") & (table.output == "linear") & table.remainder.notna()]
    found |= kink_statistics(slopes) | {"unbounded": Signs.of(kinked > 1)}
    for output, loss in CASES:
        trained = {"output": output, "loss": loss, "output_bias": False}
        found[f"{output}_{loss}"] = of_rows(slopes, "norms", {"l2": "delta_l2", "linf": "delta_linf"}, **trained)
    found |= of_rows(slopes, "norms", {"biased_linf": "delta_linf"}, output_bias=True)
    by_loss = select(slopes, "kernel_change", "losses").set_index("loss")
    found |= {f"kernel_by_loss{end}": by_loss[column] for end, column in ENDS.items()}
    for activation in OPEN:
        changes = {"change": "kernel_change", "norm": "hessian_norm"}
        found[f"open_{activation}"] = of_rows(slopes, "open", changes, activation=activation)
    return found


def hinge_statistics(table: pd.DataFrame, slopes: pd.DataFrame) -> dict[str, object]:
    """Behind a ReLU output: slopes of the Hessian norm and the kernel's change, and how many inputs cross its kink."""
    own = table[table.output == HINGE]
    return {
        **of_rows(slopes, "data", {"kernel_hinge": "kernel_change"}, output=HINGE),
        **of_rows(slopes, "data", {"hessian_hinge": "hessian_norm"}, output=HINGE),
        "within_hinge": fitted(own, "kernel_change_within")["slope"],
        "crossed": own.groupby("width").crossed.mean(),
    }


def kink_statistics(slopes: pd.DataFrame) -> dict[str, object]:
    """The kernel's change behind a linear output with ReLU and with smooth activations; None where one is missing."""
    kernels = select(slopes, "kernel_change", output="linear").set_index("activation")
    names = ("relu_slope", "relu_narrowest", "relu_widest", "smooth_narrowest", "smooth_widest")
    if "relu" not in kernels.index or len(kernels) < 2:
        return dict.fromkeys(names)
    relu, smooth = kernels.loc["relu"], kernels.drop("relu")
    values = relu.slope, relu.narrowest, relu.widest, smooth.narrowest.max(), smooth.widest.max()
    return dict(zip(names, values, strict=True))


def select(slopes: pd.DataFrame, quantity: str, part: str = "data", **wanted: object) -> pd.DataFrame:
    """The rows of one quantity, of one part of the tables, and with these settings."""
    rows = slopes[(slopes.quantity == quantity) & (slopes.part == part)]
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


def of_rows(slopes: pd.DataFrame, part: str, names: dict[str, str], **wanted: object) -> dict[str, float]:
    """Statistics NAME, NAME_narrowest and NAME_widest: slope and ends in the one row of each quantity. names: NAME to
    quantity."""
    found: dict[str, float] = {}
    for name, quantity in names.items():
        (row,) = select(slopes, quantity, part, **wanted).itertuples()
        found |= {name: row.slope, f"{name}_narrowest": row.narrowest, f"{name}_widest": row.widest}
    return found


def fitted(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """slope: d log(mean over seeds) / d log(width), by least squares. narrowest, widest: the means at both ends."""
    means = frame.groupby("width")[column].mean()
    known = means.dropna()
    slope = float(np.polyfit(np.log(known.index), np.log(known), 1)[0]) if len(known) > 1 else math.nan
    return {"slope": slope, "narrowest": means.iloc[0], "widest": means.iloc[-1]}


def slope_table(
    table: pd.DataFrame, open_cases: pd.DataFrame, norms: pd.DataFrame, losses: pd.DataFrame
) -> pd.DataFrame:
    """Of each part (data, open, norms, losses): its keys, quantity, slope, means at both ends."""
    keys, changes = ["output", "activation"], ("hessian_norm", "kernel_change")
    return pd.DataFrame(
        {"part": part, **dict(zip(names, key, strict=True)), "quantity": quantity, **fitted(group, quantity)}
        for part, frame, names, quantities in (
            ("data", table, keys, changes),
            ("open", open_cases, keys, changes),
            ("norms", norms, [*keys, "loss", "output_bias"], ("delta_l2", "delta_linf")),
            ("losses", losses, [*keys, "loss"], ("kernel_change",)),
        )
        for key, group in frame.groupby(names, sort=False)
        for quantity in quantities
    )


def draw(table: pd.DataFrame, open_cases: pd.DataFrame, norms: pd.DataFrame, slopes: pd.DataFrame) -> plt.Figure:
    """Means over seeds against width on logarithmic axes, with the fitted slopes in the legends."""
    themed()
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.6))
    cases = pd.concat([table.assign(part="data"), open_cases.assign(part="open")])
    draw_constancy(axes[0], cases, slopes, "hessian_norm")
    draw_constancy(axes[1], cases, slopes, "kernel_change")
    norms = norms[~norms.output_bias]
    draw_norms(axes[2], norms, slopes)
    for axis, title in zip(axes, TITLES, strict=True):
        axis.set(xscale="log", yscale="log", xlabel="width", title=title)
        widths = sorted({int(width) for drawn in axis.lines for width in drawn.get_xdata()})
        axis.set_xticks(widths, [str(width) for width in widths])
        axis.minorticks_off()
        axis.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncol=2, frameon=False)
    axes[2].set_ylim(norms.delta_linf.min() / 2, norms.delta_l2.max() * 2)
    sns.despine(figure)
    figure.tight_layout()
    return figure


def draw_constancy(axis: plt.Axes, cases: pd.DataFrame, slopes: pd.DataFrame, quantity: str) -> None:
    """A line for each output and activation, dashed behind an output that is not linear."""
    keys = ["part", "output", "activation"]
    fitted = slopes[(slopes.quantity == quantity) & (slopes.part != "losses")].set_index(keys).slope
    colours = sns.color_palette("husl", cases.groupby(keys).ngroups)
    for colour, (key, rows) in zip(colours, cases.groupby(keys, sort=False), strict=True):
        part, output, activation = key
        label = f"{output} output, {activation}{' (open)' if part == 'open' else ''}: {fitted[key]:.2f}"
        draw_means(axis, rows, quantity, label=label, linestyle="-" if output == "linear" else "--", color=colour)


def draw_norms(axis: plt.Axes, norms: pd.DataFrame, slopes: pd.DataFrame) -> None:
    """‖Δθ‖₂ and, dashed, ‖Δθ‖∞ for each output and loss."""
    pairs = ["output", "loss"]
    fitted = slopes[(slopes.part == "norms") & ~slopes.output_bias.eq(True)].set_index(["quantity", *pairs]).slope
    colours = sns.color_palette("colorblind", norms.groupby(pairs).ngroups)
    for quantity, name, style in (("delta_l2", "‖Δθ‖₂", "-"), ("delta_linf", "‖Δθ‖∞", "--")):
        for colour, ((output, loss), rows) in zip(colours, norms.groupby(pairs, sort=False), strict=True):
            label = f"{name}, {loss}, {output}: {fitted[quantity, output, loss]:.2f}"
            draw_means(axis, rows, quantity, label=label, linestyle=style, color=colour)


def draw_means(axis: plt.Axes, rows: pd.DataFrame, quantity: str, **style: Any) -> None:
    """The mean over seeds against width, as one line."""
    means = rows.groupby("width")[quantity].mean()
    axis.plot(means.index, means, marker="o", markersize=3, **style)
