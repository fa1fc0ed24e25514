"""What an update says about its private set before any reconstruction: how many images, and the mean they had removed.

A linear layer fed by the images themselves changes by [ΔW | Δb] = Σ_i δ_i [x_i; 1]ᵀ under any sequence of SGD steps:
its rank is the number of images, and a pixel that never varies gives a column proportional to Δb.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from attacks.interface.observation import Observation
from attacks.networks.probing import linear_layers, watched

CLEAR_GAP = 10.0  # ratio of neighbouring singular values: 2 to 4 under Adam, above 100 for SGD in float32
ROUNDING = 1e-4  # of the largest singular value: rounding of float32 parameters lies below, images above
MAX_MEAN = 0.99


@dataclass(frozen=True)
class InputLayer:
    """The linear layer that is fed the flattened images. scale: z = scale·Wx + b, 1 but in NTK parameterization."""

    weight: str
    bias: str | None
    scale: float


def find_input_layer(model: nn.Module, input_shape: tuple[int, int, int]) -> InputLayer | None:
    """Found by watching what every linear layer is given and gives, whatever surrounds it; None where there is none."""
    found: list[InputLayer] = []
    probe = torch.randn((2, *input_shape), generator=torch.Generator().manual_seed(0))

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if inputs[0].shape == (2, probe[0].numel()) and torch.equal(inputs[0].cpu(), probe.flatten(1)):
                weight, bias = cast(Tensor, module.weight), cast(Tensor | None, module.bias)
                product = inputs[0] @ weight.T
                scale = float((product * (output if bias is None else output - bias)).sum() / (product**2).sum())
                found.append(InputLayer(f"{name}.weight", None if bias is None else f"{name}.bias", scale))

        return hook

    parameter = next(model.parameters())
    with watched(linear_layers(model), watch), torch.no_grad():
        model.eval()(probe.to(parameter.device, parameter.dtype))
    return found[0] if found else None


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


def gavish_donoho(rows: int, columns: int) -> float:
    """ω(β) of the optimal hard threshold ω·median(σ) for unknown noise (Gavish and Donoho 2014, eq. 5)."""
    beta = min(rows, columns) / max(rows, columns)
    return 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43


@dataclass(frozen=True)
class ImageCount:
    """clear: whether the spectrum falls to its floor behind the count; where it does not, the count is a guess."""

    count: int
    clear: bool


def count_images(update: Tensor) -> int:
    """The number of images behind a first-layer update [ΔW | Δb] (out, in + 1): its rank above the noise floor."""
    return read_spectrum(update).count


def read_spectrum(update: Tensor) -> ImageCount:
    """The rank of [ΔW | Δb] (out, in + 1) above the noise floor, and whether it can be trusted.

    Dead units and constant pixels give exact zeros and with them a huge false gap, so empty rows and columns are
    dropped and the spectrum is clamped at its median, the noise floor. The rank is where the largest ratio of
    neighbours lies, provided that the spectrum falls to the floor there: to within a few thresholds of Gavish and
    Donoho, or by a larger ratio than what is left to fall (many training steps leave some directions of rounding error
    above the threshold). Otherwise it is the number of singular values above that threshold.
    """
    update = update[update.abs().sum(1) > 0][:, update.abs().sum(0) > 0]
    return rank_above_noise(torch.linalg.svdvals(update), update.shape[0], update.shape[1])


def rank_above_noise(spectrum: Tensor, rows: int, columns: int) -> ImageCount:
    """`read_spectrum` from the singular values, largest first, of a matrix (rows, columns) without empty ones."""
    if min(rows, columns) < 2:
        return ImageCount(min(rows, columns), min(rows, columns) == 1)  # a zero update says nothing of the images
    floor = spectrum.median()
    threshold = gavish_donoho(rows, columns) * floor
    clamped = spectrum.clamp_min(floor.clamp_min(spectrum[0] * 1e-12))
    ratios = clamped[:-1] / clamped[1:]
    ratios[len(ratios) // 2 :] = 1
    gap = int(ratios.argmax())
    behind = clamped[gap + 1]
    if ratios[gap] > 2 and (behind <= 4 * threshold or ratios[gap] > behind / floor):
        # Adam's full-rank updates have a gap too, but a small one; images stand orders of magnitude above rounding
        return ImageCount(gap + 1, bool(ratios[gap] > CLEAR_GAP))
    # more images than half of the rank that pixels allow: the median is no floor, but rounding still is; never clear,
    # as the rank of the pixels themselves ends in the same way
    clamped = spectrum.clamp_min(spectrum[0].clamp_min(1e-300) * ROUNDING**2)
    ratios = clamped[:-1] / clamped[1:]
    ratios[: len(ratios) // 2] = 1
    gap = int(ratios.argmax())
    if ratios[gap] > CLEAR_GAP and clamped[gap + 1] < ROUNDING * clamped[0]:
        return ImageCount(gap + 1, False)
    return ImageCount(int((spectrum > threshold).sum()), False)


def infer_image_count(observation: Observation) -> ImageCount | None:
    """The number of private images, from the first layer's spectrum; None where no layer sees the images."""
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    return read_spectrum(weight if bias is None else torch.cat([weight, bias[:, None]], 1))


def infer_num_private(observation: Observation) -> int | None:
    """`infer_image_count` without its confidence."""
    found = infer_image_count(observation)
    return None if found is None else found.count


def infer_pixel_mean(observation: Observation) -> tuple[float, ...] | None:
    """The per-channel mean that was subtracted, from pixels that are black in every private image.

    Such a pixel is −mean throughout, so its column of ΔW is −mean·Δb; a column of zeros beside a Δb means that nothing
    was subtracted. Returns None where no pixel is constant, and where the answer is no mean that images in [0, 1] have:
    Adam's steps, equal in size everywhere, look like a mean of 1.
    """
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    if bias is None or not bias.any():
        return None
    means = []
    for channel in weight.reshape(len(weight), observation.input_shape[0], -1).unbind(1):
        slope = (channel.T @ bias) / (bias @ bias)
        miss = (channel - bias[:, None] * slope).norm(dim=0) / channel.norm(dim=0).clamp_min(1e-30)
        constant = (miss < 1e-2) & (slope < 0)
        black = ~channel.any(0)
        if not (constant | black).any():
            return None
        mean = float(-slope[constant].median()) if constant.sum() > black.sum() else 0.0
        if mean > MAX_MEAN:
            return None
        means.append(mean)
    return tuple(means)
