"""What the tests of attacks share: plain functions, imported as `from tests.attacks.conftest import digits`.

A client here is a few lines of torch, so that attacks are tested against training that is not the simulator's.
"""

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from functools import cache
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from attacks import Observation, Reconstruction
from attacks.interface.observation import State
from attacks.networks.probing import scores_of

MEAN = 0.3  # what a federation subtracts from pixels in [0, 1]


def digits(count: int, mean: float = MEAN, start: int = 0) -> Tensor:
    """(count, 1, 8, 8), pixels in [0, 1] less the mean. Two different digits are 2.5 to 4 apart in L2."""
    pixels = torch.tensor(_digits().images[start : start + count] / 16, dtype=torch.float32)
    return pixels[:, None] - mean


def digit_classes(count: int, start: int = 0) -> Tensor:
    return torch.tensor(_digits().target[start : start + count])


_digits = cache(load_digits)  # a hundredth of a second to read, hundreds of times


def nearest(images: Tensor, found: Reconstruction) -> Tensor:
    """L2 of every image to the nearest reconstruction, (N,)."""
    return torch.cdist(images.flatten(1), found.images.flatten(1)).min(1).values


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class NTKLinear(nn.Linear):
    """z = W x / √fan_in + b with W ~ N(0, 1): a linear layer in NTK parameterization."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True):
        super().__init__(inputs, outputs, bias)
        nn.init.normal_(self.weight)
        if bias:
            nn.init.normal_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight / math.sqrt(self.in_features), self.bias)


def mlp(
    width: int = 64,
    activation: type[nn.Module] = nn.ReLU,
    outputs: int = 10,
    *,
    inputs: int = 64,
    depth: int = 2,
    bias: bool = True,
    linear: type[nn.Linear] = nn.Linear,
    output: Sequence[nn.Module] = (),
    seed: int = 0,
) -> nn.Sequential:
    """A plain network of `depth` hidden layers on flattened images; `output` follows its last layer."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for into, out in zip((inputs, *[width] * depth), [width] * depth, strict=False):
        layers += [linear(into, out, bias=bias), activation()]
    return nn.Sequential(*layers, linear(width if depth else inputs, outputs, bias=bias), *output)


def state_of(model: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def minibatches(count: int, size: int, epochs: int, order: torch.Generator | None = None) -> list[Tensor]:
    """The images of every step, in the same order in every epoch or shuffled by `order`."""
    batches: list[Tensor] = []
    for _ in range(epochs):
        images = torch.arange(count) if order is None else torch.randperm(count, generator=order)
        batches += images.split(size)
    return batches


def local_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, or half the squared error to ±1 for one output."""
    if outputs.shape[1] == 1:
        return 0.5 * ((outputs[:, 0] - (2.0 * (labels % 2) - 1)) ** 2).mean()
    return F.cross_entropy(outputs, labels)


def client(
    model: nn.Module,
    images: Tensor,
    batches: int | Sequence[Tensor | Sequence[int]] = 5,
    labels: Tensor | None = None,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    lr: float = 0.05,
    **options: float,
) -> Observation:
    """What a server sees of a client that trains `model`, in place: the images of every step, or so many steps on all
    images. labels: by default 0, 1, …, 9, 0, …"""
    initial, step = state_of(model), optimizer(model.parameters(), lr=lr, **options)
    labels = torch.arange(len(images)) % 10 if labels is None else labels
    for batch in [torch.arange(len(images))] * batches if isinstance(batches, int) else batches:
        chosen = torch.as_tensor(batch)
        step.zero_grad()
        local_loss(scores_of(model(images[chosen])), labels[chosen]).backward()
        step.step()
    model.zero_grad()
    return Observation(model, ((initial, state_of(model)),), (images.shape[1], images.shape[2], images.shape[3]))


@contextlib.contextmanager
def in_bfloat16(model: nn.Module) -> Iterator[None]:
    """Within it, the network computes its outputs in mixed precision, as under `torch.autocast` in each step."""
    mixed = torch.autocast("cpu", torch.bfloat16)(model.forward)
    with mock.patch.object(model, "forward", lambda x: mixed(x).float()):
        yield


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[nn.Module]:
    """Within it, it is an error to move or cast the network; afterwards it has to be what it was: parameters, buffers,
    modes (set to a mixture before), gradients and hooks."""
    model.train()
    next(iter(model.children())).eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    trained = [parameter.requires_grad for parameter in model.parameters()]
    hooks = [[*module._forward_hooks, *module._forward_pre_hooks] for module in model.modules()]
    own, apply = set(map(id, model.modules())), nn.Module._apply

    def watched(module: nn.Module, *args: object, **options: object) -> nn.Module:
        assert id(module) not in own, "the network was moved or cast"
        return apply(module, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "_apply", watched)
        yield model
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [parameter.requires_grad for parameter in model.parameters()] == trained
    assert [[*module._forward_hooks, *module._forward_pre_hooks] for module in model.modules()] == hooks
