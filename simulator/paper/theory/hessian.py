"""The experiment `hessian`: Hessian norm, change of the kernel and change of the parameters against width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from pydantic import Field

from clients.config import Count, Positive, Section
from simulator.paper.costs import clocked
from simulator.paper.experiment import ExperimentRun, Outcome, ShowProgress, experiment
from simulator.paper.pictures import themed
from simulator.paper.theory.constancy import Network, measure, measure_training
from simulator.paper.theory.hessian_statistics import CASES, LOSSES, OPEN, STEADY, hessian_statistics, slope_table
from simulator.results.storage import write_atomically

COLUMNS = "width output activation seed hessian_norm kernel_change".split()
SHARE = 0.2  # of its first value, to which training brings a loss
BOUND_WIDTH = 1024  # up to which the bound is measured: it takes the Hessian at three points
TIMED_WIDTH = 1024  # where the cost of all others is read off


class HessianSettings(Section):
    widths: list[Count] = Field(min_length=2)
    activations: list[str] = Field(min_length=1, description="hidden ones, behind linear and sigmoid outputs")
    open_widths: list[Count] = Field(min_length=2)
    training_widths: list[Count] = Field(min_length=2)
    seeds: Count = 5
    training_activation: str = Field("gelu", description="hidden one of the networks trained under every loss")
    radius: Positive = Field(0.5, description="‖Δθ‖₂ at which the change of the kernel is measured")
    open_radius: Positive = Field(0.1, description="the same for hidden softmax and maxout: softmax fits within 0.5")


@dataclass(frozen=True)
class Networks:
    """decided: those with the radius `radius`; undecided: hidden softmax and maxout; trained: each under a loss."""

    decided: list[Network]
    undecided: list[Network]
    trained: list[tuple[Network, str]]

    @classmethod
    def of(cls, settings: HessianSettings) -> "Networks":
        pairs = [(output, activation) for output in ("linear", "sigmoid") for activation in settings.activations]
        steady = [(output, "tanh") for output in STEADY]
        activation, widths = settings.training_activation, settings.training_widths
        plain = grid(widths, [(output, activation) for output in ("linear", "sigmoid")], settings.seeds)
        free = grid(widths, [("linear", activation)], settings.seeds, output_bias=True)
        trained = [(network, loss) for network in plain for output, loss in CASES if output == network.output]
        return cls(
            grid(settings.widths, [*pairs, *steady], settings.seeds),
            grid(settings.open_widths, [("linear", activation) for activation in OPEN], settings.seeds),
            [*trained, *((network, LOSSES[0]) for network in free)],
        )

    @property
    def work(self) -> int:
        """Each costs about the square of its width."""
        trained = [network for network, _ in self.trained]
        return sum(network.width**2 for network in [*self.decided, *self.undecided, *trained])


def cost(run: ExperimentRun) -> float:
    """From one network, by the square of the widths."""
    settings = run.settings(HessianSettings)
    network = Network(TIMED_WIDTH, "linear", settings.activations[0], 0)
    seconds = clocked(lambda: measure(network, settings.radius, bound=True))
    return seconds * Networks.of(settings).work / TIMED_WIDTH**2


@experiment("hessian", "constancy of the kernel against width, linear and non-linear outputs", HessianSettings, cost)
def hessian(run: ExperimentRun) -> Outcome:
    settings = run.settings(HessianSettings)
    networks = Networks.of(settings)
    report = weighted(run.report, networks.work)

    def constancy(network: Network, radius: float) -> dict[str, object]:
        found = measure(network, radius, bound=network.width <= BOUND_WIDTH)
        report(f"{network.output} output, {network.activation}, width {network.width}", network.width**2)
        return {**vars(network), **found}

    def training(network: Network, loss: str) -> dict[str, object]:
        found = measure_training(network, loss, SHARE)
        report(f"training under {loss}, width {network.width}", network.width**2)
        return {**vars(network), "loss": loss, **found}

    norms = pd.DataFrame([training(network, loss) for network, loss in networks.trained])
    open_cases = pd.DataFrame([constancy(network, settings.open_radius) for network in networks.undecided])
    table = pd.DataFrame([constancy(network, settings.radius) for network in networks.decided])
    slopes = slope_table(table, open_cases, norms)
    for name, frame in (("slopes", slopes), ("bound", table), ("open", open_cases), ("norms", norms)):
        write_atomically(run.out / f"{name}.csv", frame.to_csv(index=False))
    statistics = hessian_statistics(table, slopes, settings.radius, SHARE)
    return Outcome(table[COLUMNS], statistics, partial(draw, table, open_cases, norms, slopes))


def grid(
    widths: Sequence[int], kinds: Sequence[tuple[str, str]], seeds: int, output_bias: bool = False
) -> list[Network]:
    """One network for each width, (output, activation) and seed."""
    return [Network(width, *kind, seed, output_bias) for width in widths for kind in kinds for seed in range(seeds)]


def weighted(report: ShowProgress, total: int) -> Callable[[str, int], None]:
    """A report that adds up the work it is told of."""
    done = 0

    def add(what: str, work: int) -> None:
        nonlocal done
        done += work
        report(what, done, total)

    return add


def draw(table: pd.DataFrame, open_cases: pd.DataFrame, norms: pd.DataFrame, slopes: pd.DataFrame) -> plt.Figure:
    """Means over seeds against width on logarithmic axes, with the fitted slopes in the legends."""
    themed()
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.6))
    cases = pd.concat([table.assign(part="data"), open_cases.assign(part="open")])
    draw_constancy(axes[0], cases, slopes, "hessian_norm")
    draw_constancy(axes[1], cases, slopes, "kernel_change")
    draw_norms(axes[2], norms[~norms.output_bias], slopes)
    axes[0].set_title("Hessian norm ‖H‖₂")
    axes[1].set_title("change of the kernel, at one ‖Δθ‖₂ for all widths")
    axes[2].set_title("change of the parameters in training")
    for axis in axes:
        axis.set(xscale="log", yscale="log", xlabel="width")
        widths = sorted({int(width) for drawn in axis.lines for width in drawn.get_xdata()})
        axis.set_xticks(widths, [str(width) for width in widths])
        axis.minorticks_off()
        axis.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncol=2, frameon=False)
    axes[2].set_ylim(norms.delta_linf[~norms.output_bias].min() / 2, norms.delta_l2[~norms.output_bias].max() * 2)
    sns.despine(figure)
    figure.tight_layout()
    return figure


def draw_constancy(axis: plt.Axes, cases: pd.DataFrame, slopes: pd.DataFrame, quantity: str) -> None:
    """A line for each output and activation, dashed behind an output that is not linear."""
    keys = ["part", "output", "activation"]
    fitted = slopes[slopes.quantity == quantity].set_index(keys).slope
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
