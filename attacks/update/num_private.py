"""How many private images there are, read off an update before any reconstruction."""

import torch

from attacks.interface.observation import Observation
from attacks.update.first_layer import first_layer_update
from attacks.update.spectrum import ImageCount, read_spectrum


def infer_image_count(observation: Observation) -> ImageCount | None:
    """The number of private images, from the first layer's spectrum; None where no layer sees the images."""
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    return read_spectrum(weight if bias is None else torch.cat([weight, bias[:, None]], 1))
