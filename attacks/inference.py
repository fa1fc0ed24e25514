"""What an update says about its private set before any reconstruction: how many images, and the mean they had removed.

A linear layer fed by the images themselves changes by [ΔW | Δb] = Σ_i δ_i [x_i; 1]ᵀ under any sequence of SGD steps:
its rank is the number of images, and a pixel that never varies gives a column proportional to Δb.
"""

import torch
from torch import Tensor

from attacks.dense import find_dense_network
from attacks.observation import Observation


def first_layer_update(observation: Observation) -> tuple[Tensor, Tensor | None] | None:
    """(ΔW (out, in), Δb (out,) or None) of a plain MLP's first layer, float64; None where it is frozen or not there."""
    network = find_dense_network(observation.model, observation.input_shape)
    if network is None or network.weights[0] not in observation.trainable:
        return None
    delta = observation.delta()
    return delta[network.weights[0]], delta.get(network.biases[0] or "")


def gavish_donoho(rows: int, columns: int) -> float:
    """ω(β) of the optimal hard threshold ω·median(σ) for unknown noise (Gavish and Donoho 2014, eq. 5)."""
    beta = min(rows, columns) / max(rows, columns)
    return 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43


def count_images(update: Tensor) -> int:
    """The number of images behind a first-layer update [ΔW | Δb] (out, in + 1): its rank above the noise floor.

    Dead units and constant pixels give exact zeros and with them a huge false gap, so empty rows and columns are
    dropped and the spectrum is clamped at its median, the noise floor. The rank is where the largest ratio of
    neighbours lies, provided that the spectrum falls to the floor there: to within a few thresholds of Gavish and
    Donoho, or by a larger ratio than what is left to fall (many training steps leave some directions of rounding error
    above the threshold). Otherwise it is the number of singular values above that threshold.
    """
    update = update[update.abs().sum(1) > 0][:, update.abs().sum(0) > 0]
    if min(update.shape) < 2:
        return int(min(update.shape))
    spectrum = torch.linalg.svdvals(update)
    floor = spectrum.median()
    threshold = gavish_donoho(update.shape[0], update.shape[1]) * floor
    clamped = spectrum.clamp_min(floor.clamp_min(spectrum[0] * 1e-12))
    ratios = clamped[:-1] / clamped[1:]
    ratios[len(ratios) // 2 :] = 1
    gap = int(ratios.argmax())
    behind = clamped[gap + 1]
    if ratios[gap] > 2 and (behind <= 4 * threshold or ratios[gap] > behind / floor):
        return gap + 1
    return int((spectrum > threshold).sum())


def infer_num_private(observation: Observation) -> int | None:
    """The number of private images, from the first layer's spectrum; None where no layer sees the images."""
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    return count_images(weight if bias is None else torch.cat([weight, bias[:, None]], 1))


def infer_pixel_mean(observation: Observation) -> tuple[float, ...] | None:
    """The per-channel mean that was subtracted, from pixels that are black in every private image.

    Such a pixel is −mean throughout, so its column of ΔW is −mean·Δb. Returns None where no pixel is constant.
    """
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    if bias is None:
        return None
    means = []
    for channel in weight.reshape(len(weight), observation.input_shape[0], -1).unbind(1):
        slope = (channel.T @ bias) / (bias @ bias)
        miss = (channel - bias[:, None] * slope).norm(dim=0) / channel.norm(dim=0).clamp_min(1e-30)
        constant = (miss < 1e-2) & (slope < 0)
        if not constant.any():
            return None
        means.append(float(-slope[constant].median()))
    return tuple(means)
