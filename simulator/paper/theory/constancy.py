"""How constant the tangent kernel is against width, measured (Liu, Zhu, Belkin 2020, and the rebuttal of its reviews).

Fully connected networks in NTK parameterization with two hidden layers. Every seed draws weights, inputs on the sphere
of radius √d, where each of the d entries is of order 1, and random labels: no data set is involved. All of it is drawn
on the CPU and measured on the GPU where there is one.

The experiment `hessian`: Hessian norm, change of the kernel and change of the parameters against width.

The claims are those of the rebuttal of Liu, Zhu and Belkin (2020): the kernel is constant where the model's Hessian is
small, and that is not lazy training.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from pydantic import Field
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.interface.torch_tools import SGD, choose_device, derive_seed, torch_generator
from attacks.kernel.empirical import empirical_ntk, linearization_error
from attacks.kernel.hessian import hessian_norms
from clients.config import Count, ModelConfig, Positive, Section
from clients.losses import encode_targets, training_loss
from clients.models import build_model
from simulator.errors import RunError
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, clocked, experiment
from simulator.paper.measures import by_seed
from simulator.reports.drawing import themed
from simulator.results.disk import write_atomically

SHAPE = (1, 8, 8)
OFFSET = 1.0  # of the outputs before their activation, not trained: σ'' of sigmoid and tanh is 0 at 0, near the start
BOTTLENECK = 4  # units
CLASSES = 3  # outputs of a softmax, and of networks trained under several losses
INPUTS, TRAINED = 32, 8  # how many norms and kernels are measured on, and how many of them are trained on
MAX_STEPS = 1000
FINE, COARSE = 0.125, 1.0  # learning rates, as shares of the inverse of the kernel's largest eigenvalue
HESSIAN_STEPS, HESSIAN_TOLERANCE = 100, 3e-3


@dataclass(frozen=True)
class Network:
    """output: linear, sigmoid, tanh, softmax, relu, or bottleneck: linear, with a narrow layer between two wide ones.

    output_bias: whether that of the last layer is trained. Its gradient is 1 at any width, so that it would be all that
    ‖Δθ‖_∞ sees; the networks of the paper have none.
    """

    width: int
    output: str
    activation: str
    seed: int
    output_bias: bool = False

    @property
    def outputs(self) -> int:
        return CLASSES if self.output == "softmax" else 1

    def build(self, outputs: int | None = None) -> nn.Module:
        narrow = self.output == "bottleneck"
        config = ModelConfig.model_validate(
            {
                "depth": 3 if narrow else 2,
                "width": self.width,
                "bottleneck": BOTTLENECK if narrow else None,
                "activation": self.activation,
                "output_activation": "linear" if narrow else self.output,
                "parameterization": "ntk",
            }
        )
        model = build_model(config, SHAPE, outputs or self.outputs, derive_seed(self.seed, "constancy"))
        last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
        with torch.no_grad():
            last.bias.fill_(OFFSET)
        last.bias.requires_grad_(self.output_bias)
        return model.to(choose_device("auto"))


@dataclass(frozen=True)
class ConstancyData:
    """inputs: (32, C, H, W). labels: (32,), of three classes; the first 8 are trained on."""

    inputs: Tensor
    labels: Tensor

    @classmethod
    def of(cls, seed: int) -> "ConstancyData":
        generator = torch_generator(seed, "constancy data")
        inputs = torch.randn((INPUTS, *SHAPE), generator=generator)
        radius = inputs[0].numel() ** 0.5
        inputs = radius * inputs / inputs.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        labels, device = torch.randint(CLASSES, (INPUTS,), generator=generator), choose_device("auto")
        return cls(inputs.to(device), labels.to(device))

    def targets(self, output: str) -> Tensor:
        """Under squared loss: one-hot for a softmax, else the two ends of the output's range, or ±1."""
        if output == "softmax":
            return nn.functional.one_hot(self.labels, CLASSES).float()
        low = 0.0 if output in ("sigmoid", "relu") else -1.0
        return torch.where(self.labels == 0, 1.0, low)[:, None]

    def loss(self, model: nn.Module, targets: Tensor, name: str) -> Callable[[], Tensor]:
        """What gradient descent is on: the loss of this name over the first 8 inputs, a scalar."""
        return lambda: training_loss(name, model(self.inputs[:TRAINED]), targets[:TRAINED])


def measure(network: Network, radius: float, bound: bool = False) -> dict[str, float]:
    """hessian_norm: the largest ‖H‖₂ over inputs and outputs at θ₀. kernel_change: ‖K − K₀‖_F / ‖K₀‖_F over inputs once
    gradient descent has gone ‖Δθ‖₂ = `radius`; delta_linf: ‖Δθ‖_∞ there. steps: that it took. Behind a ReLU also
    `crossed`, the share of inputs whose output has become 0 or ceased to be, and kernel_change_within, over the others.

    bound: adds remainder, the largest |f − f_lin| there, and sup_hessian, the largest ‖H‖₂ over θ₀, the end and
    half-way between, at three times the cost.
    """
    data, model = ConstancyData.of(network.seed), network.build()
    inputs, start = data.inputs, deepcopy(model.state_dict())
    norm = largest_norm(model, start, inputs, network.seed)
    lit = alive(model, inputs)
    moved, before, change = go(model, inputs, data.loss(model, data.targets(network.output), "mse"), radius)
    end = model.state_dict()
    found = {"hessian_norm": norm, **moved}
    if network.output == "relu":
        same = lit == alive(model, inputs)
        within = float(change[same][:, same].norm() / before[same][:, same].norm())
        found |= {"crossed": 1 - float(same.float().mean()), "kernel_change_within": within}
    if not bound:
        return found
    halfway = {name: (start[name] + end[name]) / 2 for name in end}
    later = [largest_norm(model, state, inputs, network.seed) for state in (halfway, end)]
    return found | {"remainder": linearization_error(model, start, end, inputs)[1], "sup_hessian": max(norm, *later)}


def measure_loss(network: Network, loss: str, radius: float) -> dict[str, object]:
    """loss; kernel_change, delta_linf and steps as of `measure`, where descent is on this loss over three classes."""
    data, model = ConstancyData.of(network.seed), network.build(CLASSES)
    targets = encode_targets(data.labels, CLASSES, CLASSES, loss, coding=(0.0, 1.0) if loss == "mse" else None)
    return {"loss": loss, **go(model, data.inputs, data.loss(model, targets, loss), radius)[0]}


def go(
    model: nn.Module, inputs: Tensor, loss: Callable[[], Tensor], radius: float
) -> tuple[dict[str, float], Tensor, Tensor]:
    """Gradient descent on `loss`, in place, until ‖Δθ‖₂ = `radius`: (kernel_change, delta_linf and steps as of
    `measure`, K₀, K − K₀)."""
    start = deepcopy(model.state_dict())
    before = empirical_ntk(model, start, inputs)
    steps, length = descend(model, loss, learning_rate(before, FINE), lambda steps, length: length >= radius)
    shrink(model, start, radius / length)
    end = model.state_dict()
    change = empirical_ntk(model, end, inputs) - before
    moved = {"kernel_change": float(change.norm() / before.norm()), "delta_linf": largest_change(start, end)}
    return {**moved, "steps": steps}, before, change


def alive(model: nn.Module, inputs: Tensor) -> Tensor:
    """(N,), whether the first output is above 0."""
    with torch.no_grad():
        return model(inputs)[:, 0] > 0


def measure_training(network: Network, loss: str, share: float) -> dict[str, object]:
    """loss. delta_l2, delta_linf: ‖Δθ‖₂ and ‖Δθ‖_∞ once training on three classes has brought `loss` down to this
    share of what it was, in `steps`; NaN where 1,000 steps do not."""
    data, model = ConstancyData.of(network.seed), network.build(CLASSES)
    start = deepcopy(model.state_dict())
    rate = learning_rate(empirical_ntk(model, start, data.inputs), COARSE)
    targets = encode_targets(data.labels, CLASSES, CLASSES, loss, coding=(0.0, 1.0) if loss == "mse" else None)
    value = data.loss(model, targets, loss)
    goal = share * float(value().detach())
    try:
        steps, length = descend(model, value, rate, lambda steps, _: steps % 5 == 0 and float(value().detach()) <= goal)
    except RunError:
        return {"loss": loss, "delta_l2": math.nan, "delta_linf": math.nan, "steps": MAX_STEPS}
    return {"loss": loss, "delta_l2": length, "delta_linf": largest_change(start, model.state_dict()), "steps": steps}


def largest_norm(model: nn.Module, state: State, inputs: Tensor, seed: int) -> float:
    generator = torch_generator(seed, "constancy hessian")
    return hessian_norms(model, state, inputs, generator, HESSIAN_STEPS, HESSIAN_TOLERANCE).largest


def learning_rate(kernel: Tensor, share: float) -> float:
    """`share` of the inverse of the largest eigenvalue of the kernel, trace form at the start, on the inputs that are
    trained on: from 2 on gradient descent on squared loss becomes unstable. kernel: on all inputs."""
    return share * TRAINED / float(torch.linalg.eigvalsh(kernel[:TRAINED, :TRAINED].double())[-1])


def descend(
    model: nn.Module, loss: Callable[[], Tensor], rate: float, enough: Callable[[int, float], bool]
) -> tuple[int, float]:
    """Gradient descent in place, until `enough`(steps, ‖θ − θ₀‖₂); returns what it last was called with.

    Raises RunError after 1,000 steps.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start, descent = [parameter.detach().clone() for parameter in parameters], SGD(parameters, rate)
    for step in range(1, MAX_STEPS + 1):
        descent.zero_grad()
        loss().backward()
        descent.step()
        moved = [(parameter.detach() - first).norm() for parameter, first in zip(parameters, start, strict=True)]
        length = float(torch.stack(moved).norm())
        if enough(step, length):
            return step, length
    raise RunError(f"{MAX_STEPS} steps of gradient descent were not enough: ‖Δθ‖ is {length:.3g}")


def shrink(model: nn.Module, start: State, share: float) -> None:
    """Back towards the start: Δθ becomes `share` of itself."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.lerp(start[name], parameter, share))


def largest_change(start: State, end: State) -> float:
    """‖Δθ‖_∞."""
    return max(float((end[name] - start[name]).abs().max()) for name in end)


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
