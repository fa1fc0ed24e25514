"""The experiment `hessian`: Hessian norm, change of the kernel and change of the parameters against width.

The claims are those of the rebuttal of Liu, Zhu and Belkin (2020): the kernel is constant where the model's Hessian is
small, and that is not lazy training.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from pydantic import Field

from clients.config import Count, Positive, Section
from simulator.paper.claims import Signs, Statistics
from simulator.paper.constancy import Network, measure, measure_loss, measure_training
from simulator.paper.experiment import ExperimentRun, Outcome, clocked, experiment
from simulator.paper.measures import draw_lines

SHARE = 0.2  # of its first value: training stops when a loss has fallen to it
BOUND_WIDTH = 1024  # the largest width at which the bound is measured, which takes the Hessian at three points
TIMED_WIDTH = 1024  # of the network that is timed: the cost of all others follows from it
STEADY = ("tanh", "softmax", "bottleneck")  # outputs that are measured with the hidden activation tanh alone
RELU_OUTPUT = "relu"  # likewise, in claims of its own
OPEN = ("softmax", "maxout")  # hidden non-linearities that the paper leaves open
BOUND = ["remainder", "sup_hessian", "crossed", "kernel_change_within"]  # columns that only some networks have
ENDS = {"": "slope", "_narrowest": "narrowest", "_widest": "widest"}  # end of a statistic's name: column of slopes
LOSSES = ("mse", "cross_entropy", "hinge")
KEYS = ["part", "output", "activation", "loss", "output_bias"]  # columns that identify a line against width
QUANTITIES = ["hessian_norm", "kernel_change", "delta_l2", "delta_linf"]
CASES = [*(("linear", loss) for loss in LOSSES), ("sigmoid", "mse")]  # (output, loss) of the networks trained


class HessianSettings(Section):
    widths: list[Count] = Field(min_length=2)
    activations: list[str] = Field(min_length=1, description="hidden ones, behind linear and sigmoid outputs")
    open_widths: list[Count] = Field(min_length=2)
    training_widths: list[Count] = Field(min_length=2)
    seeds: list[int] = Field(min_length=1)
    training_activation: str = Field("gelu", description="hidden one of the networks trained under every loss")
    radius: Positive = Field(0.5, description="‖Δθ‖₂ at which the change of the kernel is measured")
    open_radius: Positive = Field(0.1, description="the same for hidden softmax and maxout: softmax fits within 0.5")


Measurement = tuple[str, Network, Callable[[], dict[str, Any]]]
"""(the part of the table that it is for, the network, what measures it)."""


def planned(settings: HessianSettings) -> list[Measurement]:
    """List the measurements, by part of the table. norms: each network under a loss. losses: those with a linear
    output, up to `radius` under each. open: hidden softmax and maxout. bound: all others, up to `radius`."""
    activation, widths, seeds = settings.training_activation, settings.training_widths, settings.seeds
    plain = grid(widths, [(output, activation) for output in ("linear", "sigmoid")], seeds)
    free = grid(widths, [("linear", activation)], seeds, output_bias=True)
    trained = [(network, loss) for network in plain for output, loss in CASES if output == network.output]
    trained += [(network, LOSSES[0]) for network in free]
    pairs = [(output, activation) for output in ("linear", "sigmoid") for activation in settings.activations]
    undecided = grid(settings.open_widths, [("linear", activation) for activation in OPEN], seeds)
    decided = grid(settings.widths, [*pairs, *((output, "tanh") for output in (*STEADY, RELU_OUTPUT))], seeds)

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
    widths: Sequence[int], kinds: Sequence[tuple[str, str]], seeds: Sequence[int], output_bias: bool = False
) -> list[Network]:
    """Make a network for each width, (output, activation) and seed."""
    return [Network(width, *kind, seed, output_bias) for width in widths for kind in kinds for seed in seeds]


def work(plan: Sequence[Measurement]) -> int:
    """Return the cost of a plan in units of its own: a network costs about the square of its width."""
    return sum(network.width**2 for _, network, _ in plan)


def cost(_: ExperimentRun, settings: HessianSettings) -> float:
    """Return the seconds, from the time of one network and the squares of the widths. It is measured as the widest are,
    without the bound."""
    network = Network(TIMED_WIDTH, "linear", settings.activations[0], 0)
    # the second time: in the first, libraries set themselves up, which takes ten times as long as the measurement
    seconds = [clocked(measure, network, settings.radius) for _ in range(2)][1]
    return seconds * work(planned(settings)) / TIMED_WIDTH**2


def hessian_statistics(data: pd.DataFrame) -> Statistics:
    """Compute all statistics. data: a row per network and `part`, as `planned` names them; `radius`: ‖Δθ‖₂ up to which
    the kernel was followed."""
    data = data.reindex(columns=list(dict.fromkeys([*data.columns, *KEYS, *QUANTITIES, *BOUND])))
    slopes, table = slope_table(data), data[data.part == "bound"]
    radius = float(table.radius.iloc[0])
    found: dict[str, object] = {"radius": radius, "share": SHARE}
    for quantity, name in (("kernel_change", "kernel"), ("hessian_norm", "hessian")):
        own = select(slopes, quantity)
        for output in ("linear", "sigmoid"):
            rows = own[own.output == output].set_index("activation")
            found |= {f"{name}_{output}": rows.slope, f"{name}_{output}_widest": [rows.widest.min(), rows.widest.max()]}
        found[f"{name}_others"] = own[own.output.isin(STEADY)].set_index("output").slope
    found |= hinge_statistics(table, slopes)
    bounds = table.remainder / (0.5 * table.sup_hessian * radius**2)
    smooth = bounds[(table.activation != "relu") & (table.output != RELU_OUTPUT) & table.remainder.notna()]
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
    """Compute the slopes of the Hessian norm and of the kernel's change with a ReLU output, and how many inputs cross
    its kink."""
    own = table[table.output == RELU_OUTPUT]
    return {
        **of_rows(slopes, "bound", {"kernel_hinge": "kernel_change"}, output=RELU_OUTPUT),
        **of_rows(slopes, "bound", {"hessian_hinge": "hessian_norm"}, output=RELU_OUTPUT),
        "within_hinge": fitted(own, "kernel_change_within")["slope"],
        "crossed": own.groupby("width").crossed.mean(),
    }


def kink_statistics(slopes: pd.DataFrame) -> dict[str, object]:
    """Return the kernel's change with a linear output, with ReLU and with smooth activations; NaN if one is missing."""
    kernels = select(slopes, "kernel_change", output="linear").set_index("activation")
    relu, smooth = kernels.reindex(["relu"]).iloc[0], kernels.drop("relu", errors="ignore")
    found = {f"relu{end}": relu[column] for end, column in {**ENDS, "_slope": "slope"}.items()}
    return {**found, "smooth_narrowest": smooth.narrowest.max(), "smooth_widest": smooth.widest.max()}


def select(slopes: pd.DataFrame, quantity: str, part: str = "bound", **wanted: object) -> pd.DataFrame:
    """Select the rows of one quantity and one part of the table. wanted: the values of further columns."""
    rows = slopes[(slopes.quantity == quantity) & (slopes.part == part)]
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


def of_rows(slopes: pd.DataFrame, part: str, names: dict[str, str], **wanted: object) -> dict[str, float]:
    """Return statistics NAME, NAME_narrowest and NAME_widest: slope and ends of the one row of each quantity. names:
    NAME to quantity."""
    found: dict[str, float] = {}
    for name, quantity in names.items():
        (row,) = select(slopes, quantity, part, **wanted).itertuples()
        found |= {f"{name}{end}": getattr(row, column) for end, column in ENDS.items()}
    return found


def fitted(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """Fit d log(mean over seeds) / d log(width) by least squares: `slope`, and the means at both ends of the widths."""
    means = frame.groupby("width")[column].mean()
    known = means.dropna()
    slope = float(np.polyfit(np.log(known.index), np.log(known), 1)[0]) if len(known) > 1 else math.nan
    return {"slope": slope, "narrowest": means.iloc[0], "widest": means.iloc[-1]}


def slope_table(data: pd.DataFrame) -> pd.DataFrame:
    """Make a row for each combination of KEYS and each quantity: slope, and means at both ends of the widths."""
    return pd.DataFrame(
        {**dict(zip(KEYS, key, strict=True)), "quantity": quantity, **fitted(group, quantity)}
        for key, group in data.groupby(KEYS, sort=False, dropna=False)
        for quantity in QUANTITIES
    )


def draw(data: pd.DataFrame) -> plt.Figure:
    """Draw means over seeds against width on logarithmic axes, a panel for each quantity."""
    data = data[~data.output_bias & (data.part != "losses")]
    case = data.activation + ", " + data.output + " output " + data.loss.fillna("")
    long = data.assign(case=case).melt(["width", "case"], QUANTITIES, "quantity").dropna()
    options = {"col": "quantity", "col_wrap": 2, "facet_kws": {"sharey": False}}
    return draw_lines(long, "width", "value", "case", log_x=True, log_y=True, **options)


@experiment(
    "hessian",
    "constancy of the kernel against width, linear and non-linear outputs",
    hessian_statistics,
    draw,
    HessianSettings,
    cost,
)
def hessian(run: ExperimentRun, settings: HessianSettings) -> Outcome:
    plan, rows = planned(settings), []
    for count, (part, network, found) in enumerate(plan, start=1):
        rows.append({"part": part, "radius": settings.radius, **vars(network), **found()})
        what = f"{part}: {network.output} output, {network.activation}, width {network.width}"
        run.report(what, work(plan[:count]), work(plan))
    return Outcome(pd.DataFrame(rows))
