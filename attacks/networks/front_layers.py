"""The first two linear layers of any network that is fed pixels, read off what its modules are given and give.

The span attack needs no more of it: what lies behind the second layer, a `log_softmax` or a residual connection, does
not change which vectors span the updates of these two. The NTK attack asks whether the network is nothing but such
layers (`find_dense_network`).
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.interface.torch_tools import cast_state
from attacks.networks.mlp import ACTIVATIONS, CURVATURES, BatchNorm, DenseNetwork, FrontLayers
from attacks.networks.probing import linear_layers, most_exact_type, parameter_names, probe, random_images

SIZES = (1.0, 1.0, 100.0, 100.0)  # of the random images by which a network is read: ReLU6 is a ReLU of small ones
CLOSE, ROUGHLY = 1e-9, 1e-5  # in float64, and in other types


class _Call(NamedTuple):
    """What a module was given and gave.

    name: in the state dict.
    """

    module: nn.Module
    name: str
    given: Tensor
    gave: Tensor

    def __str__(self) -> str:
        return f"{type(self.module).__name__} {self.name!r}"


class _OtherFront(Exception):
    """What a network begins with instead of two linear layers, in words."""


def read_front_layers(model: nn.Module, input_shape: tuple[int, int, int]) -> FrontLayers | str:
    """Find the linear layers of a network of images (C, H, W), or, in words, what its input leads to instead.

    Of a network with one linear layer alone, the activation says nothing.
    """
    images = _images(input_shape)
    try:
        images = images.to(most_exact_type(model, images))
        state = cast_state(model.state_dict(), images.device, images.dtype)
        return _front_layers(_calls(model, images, state), images)
    except _OtherFront as other:
        return str(other)


def find_dense_network(model: nn.Module, input_shape: tuple[int, int, int]) -> DenseNetwork | None:
    """Find the plain MLP that `model` is, of an activation in `CURVATURES` and of linear layers alone, whose outputs it
    has for random images; else None."""
    linear = {name for layer in linear_layers(model) for name in parameter_names(layer)}
    own = [name for name, _ in model.named_parameters()]
    if not linear.issuperset(own) or len(own) < len(model.state_dict()):  # buffers, or one parameter of two names
        return None
    images = _images(input_shape)
    state = cast_state(model.state_dict(), images.device, images.dtype)
    try:
        network = DenseNetwork(**vars(_front_layers(_calls(model, images, state), images)))
        passes = [(probe(model, x, {}, state)[0], network.forward(state, x)) for x in (images, -images)]
    except Exception:  # the user's code takes no float64, or shapes do not chain as read
        return None
    alike = all(x.shape == y.shape and torch.allclose(x, y, rtol=CLOSE, atol=CLOSE) for x, y in passes)
    once = len(set(network.weights)) == len(network.weights)
    return network if alike and once and network.activation in CURVATURES else None


def _images(input_shape: tuple[int, int, int]) -> Tensor:
    """Draw the images (4, C, H, W), in float64, by which a network is read."""
    sizes = torch.tensor(SIZES, dtype=torch.float64).view(-1, *[1] * len(input_shape))
    return random_images(input_shape, len(sizes), torch.float64) * sizes


def _calls(model: nn.Module, images: Tensor, state: State) -> list[_Call]:
    """List every call of a module that has parameters or running statistics of its own, in order."""
    leaves = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm1d) or next(module.parameters(recurse=False), None) is not None
    }
    try:
        return [_Call(leaves[call.name], *call) for call in probe(model, images, leaves, state)[1]]
    except RuntimeError:  # it takes one image at a time, say
        raise _OtherFront(f"a forward pass that fails on a batch of {len(images)}") from None


def _front_layers(calls: list[_Call], images: Tensor) -> FrontLayers:
    places = [place for place, call in enumerate(calls) if isinstance(call.module, nn.Linear)]
    names = [calls[place].name for place in places]
    if not places:
        raise _OtherFront("layers without a linear one")
    if places[0]:
        raise _OtherFront(f"{calls[0]} ahead of its first linear layer")
    if not torch.equal(calls[0].given, images.flatten(1)):
        rows, given = images.flatten(1), calls[0].given
        if rows.shape[1] == given.shape[-1] and torch.equal(rows, given.flatten(1)):
            remedy = "begin `forward` with x.flatten(1), as checkpoints fit"
            raise _OtherFront(
                f"rows of {rows.shape[1]} numbers, not flattened, at linear layer {names[0]!r} ({remedy})"
            )
        raise _OtherFront(f"something other than its pixels at linear layer {names[0]!r}")
    if any(calls[place].module.weight is calls[places[0]].module.weight for place in places[1:]):
        raise _OtherFront(f"a first linear layer whose weight is used twice, {names[0]!r}")
    norms = [_norm_behind(calls[place : place + 2]) for place in places[:2]]
    activation = _activation(calls[: places[1] + 1], norms[0]) if len(places) > 1 else ("relu", None)
    weights, biases = zip(*map(parameter_names, names), strict=True)
    biases = tuple(
        None if calls[place].module.bias is None else bias for place, bias in zip(places, biases, strict=True)
    )
    return FrontLayers(weights, biases, (*norms, *[None] * len(names[2:])), *activation)


def _norm_behind(calls: list[_Call]) -> BatchNorm | None:
    """Return the BatchNorm that is given what the first of two calls gave; None where there is none."""
    module = calls[-1].module
    if not isinstance(module, nn.BatchNorm1d) or not torch.equal(calls[0].gave, calls[-1].given):
        return None
    norm = BatchNorm.of(calls[-1].name, module)
    if norm is None:
        raise _OtherFront(f"a BatchNorm without running statistics, {calls[-1].name!r}")
    return norm


def _activation(calls: list[_Call], norm: BatchNorm | None) -> tuple[str, float | None]:
    """Return (name, parameter) of what makes the last call's input of what the first one, or its BatchNorm, gave."""
    before, (second,) = calls[: 1 if norm is None else 2], calls[-1:]
    if len(calls) > len(before) + 1:
        raise _OtherFront(f"{calls[-2]} between its first two linear layers")
    if (found := activation_between(before[-1].gave, second.given)) is not None:
        return found
    raise _OtherFront(f"no activation that is known ahead of its linear layer {second.name!r}")


def activation_between(z: Tensor, fed: Tensor) -> tuple[str, float | None] | None:
    """Return (name, parameter) of the activation that makes `fed` of `z`; None where none that is known does."""
    if z.shape != fed.shape or torch.equal(z, fed):
        return None
    lowest, value = z.min(), fed.flatten()[z.argmin()]
    close = CLOSE if z.dtype == torch.float64 else ROUGHLY
    parameters = {"leaky_relu": float(value / lowest), "elu": float(value / lowest.expm1())}
    for name, own in ACTIVATIONS.items():
        parameter = parameters.get(name)
        found, _ = own(z, None, *(() if parameter is None else (parameter,)))
        if torch.allclose(found, fed, rtol=close, atol=close):
            return name, parameter
    return None
