"""How constant the tangent kernel is against width, measured (Liu, Zhu, Belkin 2020, and the rebuttal of its reviews).

Fully connected networks in NTK parameterization with two hidden layers. Every seed draws weights, inputs on the sphere
of radius √d, where each of the d entries is of order 1, and random labels: no data set is involved. All of it is drawn
on the CPU and measured on the GPU where there is one.

The experiment `hessian`: Hessian norm, change of the kernel and change of the parameters against width.

The claims are those of the rebuttal of Liu, Zhu and Belkin (2020): the kernel is constant where the model's Hessian is
small, and that is not lazy training.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
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
from simulator.paper.measures import draw_lines

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


SHARE = 0.2  # of its first value, to which training brings a loss
BOUND_WIDTH = 1024  # up to which the bound is measured: it takes the Hessian at three points
TIMED_WIDTH = 1024  # where the cost of all others is read off
STEADY = ("tanh", "softmax", "bottleneck")  # outputs measured with one hidden activation, tanh
HINGE = "relu"  # an output that is measured like them, in claims of its own
OPEN = ("softmax", "maxout")  # hidden non-linearities that the paper leaves open
BOUND = ["remainder", "sup_hessian", "crossed", "kernel_change_within"]  # not measured of every network
ENDS = {"": "slope", "_narrowest": "narrowest", "_widest": "widest"}  # of statistics' names, to columns of slopes
LOSSES = ("mse", "cross_entropy", "hinge")
KEYS = ["part", "output", "activation", "loss", "output_bias"]  # of one line against width
QUANTITIES = ["hessian_norm", "kernel_change", "delta_l2", "delta_linf"]
CASES = [*(("linear", loss) for loss in LOSSES), ("sigmoid", "mse")]  # output and loss of the networks trained


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
    widths: Sequence[int], kinds: Sequence[tuple[str, str]], seeds: Sequence[int], output_bias: bool = False
) -> list[Network]:
    """One network for each width, (output, activation) and seed."""
    return [Network(width, *kind, seed, output_bias) for width in widths for kind in kinds for seed in seeds]


def work(plan: Sequence[Measurement]) -> int:
    """Each costs about the square of its width."""
    return sum(network.width**2 for _, network, _ in plan)


def cost(_: ExperimentRun, settings: HessianSettings) -> float:
    """From one network, by the square of the widths."""
    seconds = clocked(measure, Network(TIMED_WIDTH, "linear", settings.activations[0], 0), settings.radius, True)
    return seconds * work(planned(settings)) / TIMED_WIDTH**2


def hessian_statistics(data: pd.DataFrame) -> Statistics:
    """All statistics. data: a row per network and `part` of the plan, as `planned` names them; `radius`: ‖Δθ‖₂ up to
    which the kernel was followed."""
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
        **of_rows(slopes, "bound", {"kernel_hinge": "kernel_change"}, output=HINGE),
        **of_rows(slopes, "bound", {"hessian_hinge": "hessian_norm"}, output=HINGE),
        "within_hinge": fitted(own, "kernel_change_within")["slope"],
        "crossed": own.groupby("width").crossed.mean(),
    }


def kink_statistics(slopes: pd.DataFrame) -> dict[str, object]:
    """The kernel's change behind a linear output with ReLU and with smooth activations; NaN where one is missing."""
    kernels = select(slopes, "kernel_change", output="linear").set_index("activation")
    relu, smooth = kernels.reindex(["relu"]).iloc[0], kernels.drop("relu", errors="ignore")
    found = {f"relu{end}": relu[column] for end, column in {**ENDS, "_slope": "slope"}.items()}
    return {**found, "smooth_narrowest": smooth.narrowest.max(), "smooth_widest": smooth.widest.max()}


def select(slopes: pd.DataFrame, quantity: str, part: str = "bound", **wanted: object) -> pd.DataFrame:
    """The rows of one quantity, of one part of the table, and with these settings."""
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


def slope_table(data: pd.DataFrame) -> pd.DataFrame:
    """For each of KEYS and each quantity: slope, means at both ends."""
    return pd.DataFrame(
        {**dict(zip(KEYS, key, strict=True)), "quantity": quantity, **fitted(group, quantity)}
        for key, group in data.groupby(KEYS, sort=False, dropna=False)
        for quantity in QUANTITIES
    )


def draw(data: pd.DataFrame) -> plt.Figure:
    """Means over seeds against width on logarithmic axes, a panel for each quantity."""
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
