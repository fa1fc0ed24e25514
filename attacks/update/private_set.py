"""What an adversary works with where it was told nothing: inferred from the update, or assumed with a warning."""

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.networks.probing import count_outputs, find_input_layer
from attacks.update.first_layer import infer_image_count
from attacks.update.pixel_mean import are_raw_pixels, infer_pixel_mean

ASSUMED_MEAN = 0.5  # of every channel, by attacks that need one and are not told it: the middle of the pixel range
UNKNOWN_MEAN = "pixel_mean is unknown: images are as the network was fed them, nothing was added"


def infer_private_set(
    observation: Observation, knowledge: Knowledge, wanted: Collection[str]
) -> tuple[Knowledge, int | None, list[str]]:
    """(the knowledge with those of num_private and pixel_mean that are `wanted`, inferred or assumed where they are not
    told; the number of images that the first layer's spectrum shows, None where it shows none; warnings)."""
    count, inferred, mean = knowledge.num_private, None, knowledge.pixel_mean
    warnings: list[str] = []
    if "num_private" in wanted and (found := infer_image_count(observation)) is not None:
        inferred = found.count
        if count is None and not found.has_spectral_gap:
            warnings.append(
                f"the first layer's spectrum has no clear gap: {inferred} private images is a guess "
                "(more images than their effective rank, local Adam, weight decay or noise)"
            )
        count = count or max(1, inferred)
    if "pixel_mean" in wanted:
        mean, unsure = infer_or_assume_pixel_mean(observation, knowledge)
        warnings += unsure
    return replace(knowledge, num_private=count, pixel_mean=mean), inferred, warnings


def infer_or_assume_pixel_mean(observation: Observation, knowledge: Knowledge) -> tuple[tuple[float, ...], list[str]]:
    """(the per-channel mean that an attack works with, warnings): as told, else inferred, else assumed to be 0.5."""
    if mean := knowledge.pixel_mean or infer_pixel_mean(observation, knowledge.pixel_std):
        return tuple(mean), []
    assumed = f"pixel_mean is unknown and no pixel tells it: the attack assumed {ASSUMED_MEAN}"
    return (ASSUMED_MEAN,) * observation.input_shape[0], [assumed]


def mean_of_found(
    observation: Observation, knowledge: Knowledge, images: Tensor
) -> tuple[tuple[float, ...], list[str]]:
    """(the per-channel mean that turns images (M, C, H, W), as an attack found them, into pixels; warnings): as told,
    else inferred, else 0 where they lie in the range of pixels; empty where it is not known."""
    if mean := knowledge.pixel_mean or infer_pixel_mean(observation, knowledge.pixel_std):
        return tuple(mean), []
    if are_raw_pixels(images, knowledge.pixel_std):
        return (0.0,) * observation.input_shape[0], []
    return (), [UNKNOWN_MEAN] if len(images) else []


def check_num_private_available(attack: str, observation: Observation, knowledge: Knowledge) -> None:
    """Raise InputError, in the name of `attack`, where the number of images is neither told nor to be inferred."""
    layer = find_input_layer(observation.model, observation.input_shape)
    if layer is None or layer.weight not in observation.trainable:
        knowledge.require(attack, "num_private", because="no trained layer sees the images")


def check_knowledge(observation: Observation, knowledge: Knowledge) -> None:
    """Raise InputError where what the adversary was told does not fit the network under attack, whatever the attack."""
    channels = observation.input_shape[0]
    for name, values in (("pixel_mean", knowledge.pixel_mean), ("pixel_std", knowledge.pixel_std)):
        if values is not None and len(values) != channels:
            raise InputError(f"knowledge {name} has {len(values)} values, the images have {channels} channels")
    images = knowledge.public_images
    if images is not None and (tuple(images.shape[1:]) != observation.input_shape or not len(images)):
        raise InputError(
            f"knowledge public_images has shape {tuple(images.shape)}, "
            f"it has to be (any number, {', '.join(map(str, observation.input_shape))})"
        )
    if images is not None and not torch.isfinite(images).all():
        raise InputError("knowledge public_images holds NaN or Inf: leave such images out")
    if knowledge.labels is not None:
        classes = max(2, count_outputs(observation.model, observation.input_shape))  # one output tells two classes
        if max(knowledge.labels) >= classes:
            raise InputError(
                f"knowledge labels go up to {max(knowledge.labels)}, the network tells {classes} classes apart: "
                f"count them from 0 to {classes - 1}"
            )
