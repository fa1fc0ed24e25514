"""Measure how constant the tangent kernel is against width (Liu, Zhu, Belkin 2020, and the rebuttal of its reviews).

Fully connected networks in NTK parameterization with two hidden layers. Every seed draws weights, inputs on the sphere
of radius √d, where each of the d entries is of order 1, and random labels: no data set is involved. All of it is drawn
on the CPU and measured on the GPU where there is one.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.interface.torch_tools import SGD, choose_device, derive_seed, torch_generator
from attacks.kernel.empirical import empirical_ntk, linearization_error
from attacks.kernel.hessian import hessian_norms
from clients.config import ModelConfig
from clients.models import build_model
from clients.training import encode_targets, training_loss
from simulator.run_errors import RunError

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
    """A network of the experiment, and its width.

    output: linear, sigmoid, tanh, softmax, relu, or bottleneck: linear, with a narrow layer between two wide ones.

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
    """The images of the experiment.

    inputs: (32, C, H, W).
    labels: (32,), of three classes; the first 8 are trained on.
    """

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
        """Return the targets of squared loss: one-hot for a softmax, else both ends of the output's range, or ±1."""
        if output == "softmax":
            return nn.functional.one_hot(self.labels, CLASSES).float()
        low = 0.0 if output in ("sigmoid", "relu") else -1.0
        return torch.where(self.labels == 0, 1.0, low)[:, None]

    def loss(self, model: nn.Module, targets: Tensor, name: str) -> Callable[[], Tensor]:
        """Return the function that gradient descent is on: the loss of this name over the first 8 inputs, a scalar."""
        return lambda: training_loss(name, model(self.inputs[:TRAINED]), targets[:TRAINED])


def measure(network: Network, radius: float, bound: bool = False) -> dict[str, float]:
    """Measure a network under squared loss. hessian_norm: the largest ‖H‖₂ over inputs and outputs at θ₀.
    kernel_change: ‖K − K₀‖_F / ‖K₀‖_F over inputs once gradient descent has gone ‖Δθ‖₂ = `radius`; delta_linf: ‖Δθ‖_∞
    there. steps: that it took. With a ReLU output also `crossed`, the share of inputs whose output has become 0 or
    ceased to be, and kernel_change_within, over the others.

    bound: adds remainder, the largest |f − f_lin| there, and sup_hessian, the largest ‖H‖₂ over θ₀, the end and
    half-way between, at three times the cost.
    """
    data, model = ConstancyData.of(network.seed), network.build()
    inputs, start = data.inputs, deepcopy(model.state_dict())
    norm = largest_norm(model, start, inputs, network.seed)
    positive = is_positive(model, inputs)
    loss = data.loss(model, data.targets(network.output), "mse")
    moved, before, change = descend_to(radius, model, inputs, loss)
    end = model.state_dict()
    found = {"hessian_norm": norm, **moved}
    if network.output == "relu":
        same = positive == is_positive(model, inputs)
        within = float(change[same][:, same].norm() / before[same][:, same].norm())
        found |= {"crossed": 1 - float(same.float().mean()), "kernel_change_within": within}
    if not bound:
        return found
    halfway = {name: (start[name] + end[name]) / 2 for name in end}
    later = [largest_norm(model, state, inputs, network.seed) for state in (halfway, end)]
    return found | {"remainder": linearization_error(model, start, end, inputs)[1], "sup_hessian": max(norm, *later)}


def measure_loss(network: Network, loss: str, radius: float) -> dict[str, object]:
    """Return loss; kernel_change, delta_linf and steps as of `measure`, after descent on it over three classes."""
    data, model = ConstancyData.of(network.seed), network.build(CLASSES)
    targets = encode_targets(data.labels, CLASSES, CLASSES, loss, coding=(0.0, 1.0) if loss == "mse" else None)
    return {"loss": loss, **descend_to(radius, model, data.inputs, data.loss(model, targets, loss))[0]}


def descend_to(
    radius: float, model: nn.Module, inputs: Tensor, loss: Callable[[], Tensor]
) -> tuple[dict[str, float], Tensor, Tensor]:
    """Descend the gradient of `loss`, in place, until ‖Δθ‖₂ = `radius`. Return (kernel_change, delta_linf and steps as
    of `measure`, K₀, K − K₀), the kernels (N, N) on `inputs`."""
    start = deepcopy(model.state_dict())
    before = empirical_ntk(model, start, inputs)
    steps, length = descend(model, loss, learning_rate(before, FINE), lambda steps, length: length >= radius)
    scale_change(model, start, radius / length)
    end = model.state_dict()
    change = empirical_ntk(model, end, inputs) - before
    moved = {"kernel_change": float(change.norm() / before.norm()), "delta_linf": largest_change(start, end)}
    return {**moved, "steps": steps}, before, change


def is_positive(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return (N,) bool, whether the first output is above 0."""
    with torch.no_grad():
        return model(inputs)[:, 0] > 0


def measure_training(network: Network, loss: str, share: float) -> dict[str, object]:
    """Return loss; delta_l2 and delta_linf, ‖Δθ‖₂ and ‖Δθ‖_∞ once training on three classes has brought the loss down
    to this share of its first value; and steps. The norms are NaN if 1,000 steps do not."""
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
    return float(hessian_norms(model, state, inputs, generator, HESSIAN_STEPS, HESSIAN_TOLERANCE).max())


def learning_rate(kernel: Tensor, share: float) -> float:
    """Return `share` of the inverse of the kernel's largest eigenvalue, on the inputs that are trained on; descent on
    squared loss is unstable from a share of 2 on. kernel: the trace form at the start, on all inputs."""
    return share * TRAINED / float(torch.linalg.eigvalsh(kernel[:TRAINED, :TRAINED].double())[-1])


def descend(
    model: nn.Module, loss: Callable[[], Tensor], rate: float, enough: Callable[[int, float], bool]
) -> tuple[int, float]:
    """Descend the gradient in place until `enough`(steps, ‖θ − θ₀‖₂) is true; return these two.

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


def scale_change(model: nn.Module, start: State, share: float) -> None:
    """Move the parameters back towards the start, so that Δθ becomes `share` of itself."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.lerp(start[name], parameter, share))


def largest_change(start: State, end: State) -> float:
    """Return ‖Δθ‖_∞."""
    return max(float((end[name] - start[name]).abs().max()) for name in end)
