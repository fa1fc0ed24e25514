"""Find the first two linear layers that the tokens of a vision transformer pass through one by one.

In a block they lie behind attention, which mixes the tokens of an image: token p enters the LayerNorm ahead of them as

    t_p = E x_p + e_p + c_p,

x_p its patch and E the patch embedding, e_p its position and what biases add, and c_p = A h_p what attention made of
all tokens, A its output projection. A class token has no patch.
"""

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.interface.torch_tools import cast_state
from attacks.networks.front_layers import activation_between
from attacks.networks.mlp import FrontLayers
from attacks.networks.probing import Call, parameter_names, probe, random_images, run_network, watched
from attacks.networks.vision_transformer import PatchEmbedding

SAME = 1e-6  # of numbers in float64: how near they are where they are equal
PROBES = 4  # images by which a network is read


class _Reached(Exception):
    """The network was run as far as it had to be."""


@dataclass(frozen=True)
class Tokens:
    """What T tokens of images are on their way, (M, T, …) each.

    mixed: c, what attention added.
    before: t, ahead of the LayerNorm.
    first, second: what the two layers are fed.
    """

    mixed: Tensor
    before: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class TokenLayers:
    """Two linear layers with an activation between them, the LayerNorm ahead of them, and the attention ahead of that.

    layers: the two.
    names: of the modules whose input or output `Tokens` has: attention's last, the LayerNorm, and the two layers.
    projection: the name of A.
    rows: (P,), the tokens that the patches become.
    count: T, the tokens of an image.
    """

    model: nn.Module
    layers: FrontLayers
    names: tuple[str, str, str, str]
    projection: str
    rows: Tensor
    count: int

    def run(self, state: State, images: Tensor) -> Tokens:
        """Return what the tokens of images (M, C, H, W) are at the parameters `state`, differentiable in the images."""
        mixed, norm, first, second = self.names
        seen: dict[str, Tensor] = {}

        def fed(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                seen[name] = inputs[0]
                if name == second:
                    raise _Reached

            return hook

        def gave(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | tuple[Tensor, ...]) -> None:
                seen[name] = output[0] if isinstance(output, tuple) else output

            return hook

        modules = {name: self.model.get_submodule(name) for name in (norm, first, second)}
        attention = {mixed: self.model.get_submodule(mixed)}
        with watched(modules, fed, before=True), watched(attention, gave), suppress(_Reached):
            run_network(self.model, state, images)
        return Tokens(seen[mixed], seen[norm], seen[first], seen[second])


def find_token_layers(
    model: nn.Module, input_shape: tuple[int, int, int], embedding: PatchEmbedding
) -> TokenLayers | None:
    """Find the layers behind a patch embedding; None where tokens reach no two of them in this way."""
    kinds = (nn.Linear, nn.LayerNorm, nn.MultiheadAttention)
    modules = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    images = random_images(input_shape, PROBES, torch.float64)
    device = next(model.parameters()).device
    try:
        state = cast_state(model.state_dict(), device, torch.float64)
        calls = probe(model, images.to(device), modules, state)[1]
    except RuntimeError:  # it takes no float64, say
        return None
    embedded = embedding.embedded(state, images.to(device))
    tokens = [place for place, call in enumerate(calls) if call.given.dim() == call.gave.dim() == 3]
    linear = [place for place in tokens if isinstance(modules[calls[place].name], nn.Linear)]
    for one, two in itertools.pairwise(linear):
        activation = activation_between(calls[one].gave, calls[two].given)
        norm = _norm_ahead(calls[:one], modules, calls[one].given)
        if activation is None or norm is None:
            continue
        mixed = [place for place in tokens if place < norm and calls[place].gave.shape == calls[norm].given.shape]
        for place in reversed(mixed):
            rows = _tokens_of(calls[norm].given - calls[place].gave, embedded)
            if rows is not None and (projection := _projection(calls[place].name, modules)) is not None:
                names = [calls[i].name for i in (place, norm, one, two)]
                weights, biases = zip(*(parameter_names(name) for name in names[2:]), strict=True)
                layers = FrontLayers(weights, biases, (None, None), *activation)
                own, number = (names[0], names[1], names[2], names[3]), calls[one].given.shape[1]
                return TokenLayers(model, layers, own, projection, rows.cpu(), number)
    return None


def _norm_ahead(calls: list[Call], modules: Mapping[str, nn.Module], given: Tensor) -> int | None:
    """Return the place of the LayerNorm whose output a layer is given; None if there is none."""
    norms = [i for i, call in enumerate(calls) if isinstance(modules[call.name], nn.LayerNorm)]
    return next((i for i in reversed(norms) if torch.equal(calls[i].gave, given)), None)


def _projection(name: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Return the name of the linear layer that made a module's output, itself or attention's last."""
    if isinstance(modules[name], nn.Linear):
        return name
    return f"{name}.out_proj" if isinstance(modules[name], nn.MultiheadAttention) else None


def _tokens_of(rest: Tensor, embedded: Tensor) -> Tensor | None:
    """Return the rows (P,) of `rest` (M, T, D) that differ from image to image as embedded patches (M, P, D) do; None
    unless each patch has one, and no other row differs."""
    patches, others = embedded - embedded[:1], rest - rest[:1]
    if others.shape[1] < patches.shape[1] or others.shape[2] != patches.shape[2]:
        return None
    apart = torch.cdist(patches.transpose(0, 1).flatten(1), others.transpose(0, 1).flatten(1))
    near, rows = apart.min(1)
    left = others.clone()
    left[:, rows] = 0
    size = float(patches.abs().max())
    close = bool((near < SAME * size).all()) and float(left.abs().max()) < SAME * size
    return rows if close and len(rows.unique()) == len(rows) else None
