"""The update of a layer, and of the linear layer that is fed the images themselves.

It is [ΔW | Δb] = Σ_i δ_i [x_i; 1]ᵀ under any sequence of SGD steps: its rank is the number of images, and a pixel that
never varies gives a column proportional to Δb.
"""

import torch
from torch import Tensor

from attacks.interface.observation import Observation, State
from attacks.networks.probing import find_input_layer, parameter_names
from attacks.update.spectrum import ImageCount, read_spectrum


def layer_update(delta: State, layer: str) -> Tensor:
    """[ΔW | Δb] of any layer, (out, in + 1), or ΔW alone where its bias is frozen or not there; a convolution's ΔW is
    flattened to (out, in)."""
    weight, bias = parameter_names(layer)
    parts = [delta[weight].flatten(1)] + ([delta[bias][:, None]] if bias in delta else [])
    return torch.cat(parts, 1)


def first_layer_update(observation: Observation) -> tuple[Tensor, Tensor | None] | None:
    """(ΔW (out, in), Δb (out,) or None), float64, of the layer fed by the images; None where it is frozen or not there.

    ΔW is that of scale·W, so that the two are Σ δ_i x_iᵀ and Σ δ_i. With several pairs, out counts the units of all
    rounds: their updates stand below one another, and the images span the rows of all.
    """
    layer = find_input_layer(observation.model, observation.input_shape)
    if layer is None or layer.weight not in observation.trainable:
        return None
    deltas = [observation.delta(pair) for pair in range(len(observation.pairs))]
    weight = torch.cat([delta[layer.weight] for delta in deltas])
    biases = [delta[layer.bias] for delta in deltas if layer.bias in delta]
    return weight / layer.scale, torch.cat(biases) if biases else None


def infer_image_count(observation: Observation) -> ImageCount | None:
    """The number of private images, from the first layer's spectrum; None where no layer sees the images."""
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    return read_spectrum(weight if bias is None else torch.cat([weight, bias[:, None]], 1))
