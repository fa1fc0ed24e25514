"""What an adversary knows of the private set where it was told nothing: the number of images and the mean that was
subtracted from their pixels, inferred from the update or from images, or assumed with a warning; and how many images an
update can give at all.
"""

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor, nn

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge
from attacks.interface.normalization import Normalization
from attacks.interface.observation import Observation
from attacks.networks.probing import count_outputs, find_input_layer, parameter_names, probe, random_images
from attacks.networks.vision_transformer import find_patch_embedding
from attacks.update.intervals import has_biases_left_out
from attacks.update.spectrum import ROUNDING, ImageCount, first_layer_update, infer_image_count

MAX_MEAN = 0.99  # a larger one is no mean of images in [0, 1]
CONSTANT_MISFIT = 1e-2  # of a column's norm: what may be left of a pixel that is black in every private image
GREY_LEVEL = 1 / 255  # half of it is what rounding may move a pixel out of its range
BACKGROUND_HALF_WIDTH = 0.03  # in pixel values, on either side of the most frequent one
BACKGROUND_SHARE, DARKER_SHARE = 0.3, 0.1  # of all pixels: at least in a black background, at most darker than it


def infer_pixel_mean(observation: Observation, std: tuple[float, ...] | None = None) -> tuple[float, ...] | None:
    """Infer the per-channel mean that was subtracted, from pixels that are black in every private image.

    Such a pixel is −mean / std throughout, so its column of ΔW is −mean / std·Δb, zeros where nothing was subtracted.
    Returns None where no pixel is constant, and where the answer is no mean that images in [0, 1] have, as after Adam.
    std: what was divided by, 1 where it is not told.
    """
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    if bias is None or bias.norm() <= ROUNDING * weight.norm():  # as ahead of BatchNorm, where signals add up to zero
        return None
    if has_biases_left_out(torch.cat([weight, bias[:, None]], 1)):
        return None
    means: list[float] = []
    stds = std or (1.0,) * observation.input_shape[0]
    for channel, scale in zip(weight.reshape(len(weight), len(stds), -1).unbind(1), stds, strict=True):
        slope = (channel.T @ bias) / (bias @ bias)
        miss = (channel - bias[:, None] * slope).norm(dim=0) / channel.norm(dim=0).clamp_min(1e-30)
        constant = (miss < CONSTANT_MISFIT) & (slope < 0)
        black = ~channel.any(0)
        if not (constant | black).any():
            return None
        mean = scale * float(-slope[constant].median()) if constant.sum() > black.sum() else 0.0
        if mean > MAX_MEAN:
            return None
        means.append(mean)
    return tuple(means)


def infer_background(images: Tensor, std: tuple[float, ...] | None = None) -> tuple[float, ...] | None:
    """Infer the mean that was subtracted, from images (M, C, H, W) whose most frequent value is their black background:
    few pixels are darker and many near it, in every channel; else None. std: what was divided by, 1 where not told."""
    means = []
    scale = torch.tensor(std or (1.0,) * images.shape[1], dtype=images.dtype).view(-1, 1)
    for channel in images.detach().cpu().transpose(0, 1).flatten(1) * scale:
        values, width = channel.sort().values, BACKGROUND_HALF_WIDTH
        near = torch.searchsorted(values, values + width) - torch.searchsorted(values, values - width)
        mode = float(values[int(near.argmax())])
        darker = (values < mode - width).float().mean()
        if int(near.max()) < BACKGROUND_SHARE * len(values) or darker > DARKER_SHARE:
            return None
        means.append(-float(values[(values - mode).abs() <= width].median()))
    return tuple(means)


def are_raw_pixels(images: Tensor, std: tuple[float, ...] | None = None) -> bool:
    """Return whether images (M, C, H, W) fed to a network lie in [0, 1] as pixels do. std: what was divided by."""
    pixels = Normalization((), std or ()).pixels(images)
    return bool(((pixels - 0.5).abs() <= 0.5 + GREY_LEVEL / 2).all()) and len(images) > 0


OUTSIDE = 0.05  # beyond the range of pixels, from which a pixel does not belong there, whatever rounds it
FEW_OUTSIDE = 0.02  # share of the pixels of images that came back
NARROW = 0.6  # of the range of pixels: 1.2 % of CIFAR-10's images alone span less, and 2 of 20,000 pairs of them


def doubt_of_scale(images: Tensor, mean: tuple[float, ...], knowledge: Knowledge) -> list[str]:
    """Return a doubt where images (M, C, H, W), right as the network was fed them, do not fill the range of pixels, or
    leave it, by `mean`, which was told or found, and the deviation, which is 1 where it is not told."""
    if not len(images):
        return []
    said = {"mean": knowledge.pixel_mean, "deviation": knowledge.pixel_std}
    told = [f"the {name} {', '.join(f'{value:.4g}' for value in values)}" for name, values in said.items() if values]
    question = f"does {' and '.join(told)} fit?"
    pixels = Normalization(mean, knowledge.pixel_std or ()).pixels(images)
    low, high, share = pixels.min(), pixels.max(), float(((pixels - 0.5).abs() > 0.5 + OUTSIDE).float().mean())
    outside = f"{share:.0%} of the pixels that came back lie outside 0 to 1"
    if share > FEW_OUTSIDE and told:
        return [f"{outside}, as noise does it, too: {question}"]
    if share > FEW_OUTSIDE:
        python = "in Python, `pixels()` cuts them off, and `images` are as the network was fed them"
        return [f"{outside}: pixel_std is unknown and was taken for 1 ({python})"]
    if told and high - low < NARROW:
        return [f"all pixels that came back lie within {low:.2f} to {high:.2f}, of 0 to 1: {question}"]
    return []


ASSUMED_MEAN = 0.5  # of every channel, by attacks that need one and are not told it: the middle of the pixel range
UNKNOWN_MEAN = "pixel_mean is unknown: images are as the network was fed them, nothing was added"


def infer_private_set(
    observation: Observation, knowledge: Knowledge, wanted: Collection[str]
) -> tuple[Knowledge, ImageCount | None, list[str]]:
    """Return (the knowledge with those of num_private and pixel_mean that are `wanted`, inferred or assumed if not
    told; how many images the first layer's spectrum shows, or None; warnings)."""
    count, found, mean = knowledge.num_private, None, knowledge.pixel_mean
    warnings: list[str] = []
    if "num_private" in wanted and (found := infer_image_count(observation)) is not None:
        if count is None and not found.has_spectral_gap:
            warnings.append(
                f"the first layer's spectrum has no clear gap: {found.count} private images is a guess "
                "(more images than their effective rank, local Adam, weight decay or noise)"
            )
        count = count or max(1, found.count)
    if "pixel_mean" in wanted:
        mean, unsure = infer_or_assume_pixel_mean(observation, knowledge)
        warnings += unsure
    return replace(knowledge, num_private=count, pixel_mean=mean), found, warnings


def infer_or_assume_pixel_mean(observation: Observation, knowledge: Knowledge) -> tuple[tuple[float, ...], list[str]]:
    """Return (the per-channel mean that an attack works with, warnings): as told, else inferred, else 0.5."""
    if mean := knowledge.pixel_mean or infer_pixel_mean(observation, knowledge.pixel_std):
        return tuple(mean), []
    assumed = f"pixel_mean is unknown and no pixel tells it: the attack assumed {ASSUMED_MEAN}"
    return (ASSUMED_MEAN,) * observation.input_shape[0], [assumed]


def mean_of_found(
    observation: Observation, knowledge: Knowledge, images: Tensor
) -> tuple[tuple[float, ...], list[str]]:
    """Return (the per-channel mean that turns images (M, C, H, W), as an attack found them, into pixels; warnings): as
    told, else inferred, else 0 where they lie in the range of pixels; empty where it is not known."""
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
        wanted = f"(any number, {', '.join(map(str, observation.input_shape))})"
        raise InputError(f"knowledge public_images has shape {tuple(images.shape)}, it has to be {wanted}")
    if images is not None and not torch.isfinite(images).all():
        raise InputError("knowledge public_images holds NaN or Inf: leave such images out")
    if knowledge.labels is not None:
        classes = max(2, count_outputs(observation.model, observation.input_shape))  # one output tells two classes
        if max(knowledge.labels) >= classes:
            told = f"the network tells {classes} classes apart: count them from 0 to {classes - 1}"
            raise InputError(f"knowledge labels go up to {max(knowledge.labels)}, {told}")


def image_capacity(observation: Observation) -> int:
    """Return the most images that an update can give to attacks that read the row spaces of its layers (span, SPEAR,
    DAGER, cascades), over the trained linear layers, convolutions and positions; 0 where none admits a whole one.

    The update of a matrix W (m, n), or of the filters of a convolution, is a sum of products δ xᵀ, one for each image
    and each of the P positions (or tokens) at which an image is fed to it. Whatever an attack reads off its rows are
    vectors of a space of rank min(m, n) at most, and an image takes P of them: min(m, n) / P images, after any number
    of steps. A low-rank adapter has the rank of its smaller side. Learned positions of a vision transformer show one
    image's δ whole, whatever the rank of its embedding: one image at least. This bounds a family of attacks. It is no
    certified privacy, and attacks that fit images to the whole update, as gradient matching does, are not bound by it.
    """
    layers = {
        name: module
        for name, module in observation.model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d) and parameter_names(name)[0] in observation.trainable
    }
    positions = dict.fromkeys(layers, 0)
    for name, _, gave in probe(observation.model, random_images(observation.input_shape, 1), layers)[1]:
        positions[name] += gave.numel() // layers[name].weight.shape[0]
    ranks = {name: min(len(layer.weight) // getattr(layer, "groups", 1), layer.weight[0].numel())
             for name, layer in layers.items()}  # fmt: skip
    if most := max((ranks[name] // count for name, count in positions.items() if count), default=0):
        return most
    patches = find_patch_embedding(observation.model, observation.input_shape)
    return int(patches is not None and {patches.weight, patches.positions} <= set(observation.trainable))
