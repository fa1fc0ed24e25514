"""From the maps of images to the images, by descent through the frozen part of the network.

    min_x ‖maps(x) − wanted‖² / ‖wanted‖² + w · TV(x),     w falling from smooth images to exact ones

Three things make this find the image where plain descent stays in local minima. The image is a sum of images of all
scales from one pixel to full resolution, so that coarse structure moves as one coordinate of Adam. ReLUs that are off
pass part of their gradient (`attacks.networks.relaxation`). And there are several starts, of which the one with the
nearest maps is kept.

Maps with fewer entries than images have pixels determine no image, however exact they are. The likeliest image that has
them is sought all the same, from one start, with a prior of photographs beside the misfit; it is never trusted.

An inversion ends somewhere for any maps, and neither its residual nor the agreement of several starts says whether that
is near the image. So decoys go the same way, images of nobody, from maps with noise of the size of the image's own
residual: they measure how much of an image its maps give back, and so whether it may be returned.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from attacks.base import Progress, silent
from attacks.interface.torch_tools import descend
from attacks.networks.relaxation import relaxed
from attacks.span.thresholds import MAP_INVERSION, MAP_SEARCH, SINGLE_IMAGE, Descent


def dead_leaves(count: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Draw images (count, C, H, W) with a mean of 0 and a standard deviation of 1 each, on the CPU: discs that hide one
    another, of random colours and of radii r between a pixel and half of the image with density 1 / r² (the dead leaves
    model of natural images: Lee, Mumford and Huang 2001)."""
    channels, height, width = shape
    largest = max(height, width) / 2
    down, across = torch.arange(height)[:, None], torch.arange(width)
    images = torch.zeros(count, *shape)
    for image in images:
        for _ in range(MAP_INVERSION.leaves):
            place = torch.rand(2, generator=generator)
            radius = largest / (1 + (largest - 1) * torch.rand(1, generator=generator))
            grey = torch.rand(1, generator=generator)
            color = (grey + MAP_INVERSION.leaf_color * torch.randn(channels, generator=generator)).clamp(0, 1)
            inside = (down - height * place[0]) ** 2 + (across - width * place[1]) ** 2 < radius**2
            image[:, inside] = color[:, None]
    images -= images.mean((1, 2, 3), keepdim=True)
    return images / images.std((1, 2, 3), keepdim=True).clamp_min(1e-6)


TINY = 1e-12  # keeps quotients and roots finite

Maps = Callable[[Tensor], Tensor]
"""The maps (M, …) of images (M, C, H, W) in the model's input space, differentiable."""


@dataclass(frozen=True)
class MapTarget:
    """What is known of images: their maps at one place of the network.

    maps: at the attacked parameters.
    wanted: (M, …), the maps that were recovered, one for each image.
    cost: multiply-adds that the maps of one image take.
    prior: weight of `PixelSpace.improbability` beside the misfit.
    """

    maps: Maps
    wanted: Tensor
    cost: float = 0.0
    prior: float = 0.0

    def misfit(self, images: Tensor) -> Tensor:
        """Return ‖maps(x) − wanted‖² / ‖wanted‖² (S · M,) of images (S · M, C, H, W): S starts of all M maps."""
        wanted = self.wanted.flatten(1)
        starts = len(images) // len(wanted)
        missed = self.maps(images).flatten(1).view(starts, *wanted.shape) - wanted
        return (missed.square().sum(2) / wanted.square().sum(1)).flatten()


@dataclass(frozen=True)
class Inverted:
    """Images with the wanted maps, as far as the descent came.

    images: (M, C, H, W), the start with the smallest residual for each map.
    residual: (M,), ‖maps(x) − wanted‖ / ‖wanted‖.
    decoy_error: (M,), ‖x' − d‖ / ‖d − its mean colour‖ of a decoy d that was inverted to x' from maps as inexact as
        this image's; infinite where maps have fewer entries than pixels, whatever decoys do.
    """

    images: Tensor
    residual: Tensor
    decoy_error: Tensor

    @property
    def trusted(self) -> Tensor:
        """(M,) bool: whether decoys of maps at least as exact lose less than half of their contrast's energy."""
        order = self.residual.argsort(stable=True)
        lost = self.decoy_error[order].square()
        counted = torch.arange(1, len(lost) + 1, device=lost.device)
        trusted = lost.cumsum(0) / counted < MAP_INVERSION.most_energy_lost
        return torch.empty_like(trusted).index_copy_(0, order, trusted)


def invert_maps(
    target: MapTarget, pixels: "PixelSpace", generator: torch.Generator, progress: Progress = silent
) -> Inverted | None:
    """Find images (M, C, H, W) whose maps are the wanted ones, by `MAP_INVERSION.descent` from several random starts in
    one batch; then as many decoys, from one start each. Where maps have fewer entries than pixels, the likeliest images
    by `MAP_INVERSION.few_descent` from one start, of which none is trusted: decoys would not say whether an eye knows
    them.

    None where the work would exceed `MAP_INVERSION.most_work`, or, for images that may be trusted, where a pilot, a
    short descent for the maps of a few decoys, ends no nearer to them than their mean colours, as with random weights.

    generator: of starts and decoys, on the CPU. progress: is told the residual.
    """
    own, wanted = MAP_INVERSION, target.wanted
    few = wanted[0].numel() < math.prod(pixels.shape)
    descent = _affordable(target, own.few_descent if few else own.descent)
    if descent is None:
        return None
    if few:
        target = replace(target, prior=own.few_prior)
        images, residual = _descended(target, pixels, descent, 1, generator, progress)
        return Inverted(images, residual, torch.full_like(residual, math.inf))
    early = own.pilot_decoys * own.pilot.steps / (len(wanted) * descent.steps)  # the pilot's work in that of a start
    total = early + own.starts + 1
    if decoys_lost(target, pixels, own.pilot, own.pilot_decoys, generator, shared(progress, 0, early, total)) >= 1:
        return None
    share = shared(progress, early, own.starts, total)
    images, residual = likeliest_images(target, pixels, descent, generator, share)
    # with the mean colour and the contrast of each of the images
    decoys = _centred(pixels.decoys(len(wanted), generator).to(wanted))
    contrast = _length(_centred(images)) / _length(decoys).clamp_min(TINY)
    decoys = images.mean((2, 3), keepdim=True) + contrast.view(-1, 1, 1, 1) * decoys
    share = shared(progress, early + own.starts, 1, total)
    inverted = partial(_descended, pixels=pixels, descent=descent, starts=1, generator=generator, progress=share)
    return Inverted(images, residual, _decoy_error(target, decoys, residual, generator, inverted))


def likeliest_images(
    target: MapTarget, pixels: "PixelSpace", descent: Descent, generator: torch.Generator, progress: Progress = silent
) -> tuple[Tensor, Tensor]:
    """Return (images (M, C, H, W), residuals (M,)) as `Inverted` has them. Nothing says that they are right."""
    starts, count = MAP_INVERSION.starts, len(target.wanted)
    images, residual = _descended(target, pixels, descent, starts, generator, progress)
    best = residual.view(starts, -1).argmin(0) * count + torch.arange(count, device=residual.device)
    return images[best], residual[best]


def decoys_lost(
    target: MapTarget,
    pixels: "PixelSpace",
    descent: Descent,
    count: int,
    generator: torch.Generator,
    progress: Progress = silent,
) -> float:
    """Return the mean of ‖x − d‖ / ‖d − its mean colour‖ of images x from the exact maps of so many decoys d."""
    decoys = pixels.decoys(count, generator).to(target.wanted)
    inverted = partial(_descended, pixels=pixels, descent=descent, starts=1, generator=generator, progress=progress)
    return float(_decoy_error(target, decoys, target.wanted.new_zeros(()), generator, inverted).mean())


def shared(progress: Progress, before: float, images: float, total: float) -> Progress:
    """Return the progress of one of several descents, of so many images after `before` others, in 1/1000 of `total`."""
    return lambda done, steps, misfit: progress(round(1000 * (before + images * done / steps) / total), 1000, misfit)


def _affordable(target: MapTarget, descent: Descent) -> Descent | None:
    """Return the descent with as many steps, of three forward passes each, as are affordable; None for too few."""
    images = len(target.wanted) * (MAP_INVERSION.starts + 1)
    steps = int(min(descent.steps, MAP_INVERSION.most_work / max(1.0, 3 * target.cost * images)))
    few = min(MAP_INVERSION.fewest_steps, descent.steps)
    return None if steps < few else replace(descent, steps=steps)


def _decoy_error(
    target: MapTarget,
    decoys: Tensor,
    noise: Tensor,
    generator: torch.Generator,
    inverted: Callable[[MapTarget], tuple[Tensor, Tensor]],
) -> Tensor:
    """Return ‖x − d‖ / ‖d − its mean colour‖ (D,) of decoys d (D, C, H, W) inverted to x from maps with `noise`
    (D,)."""
    with torch.no_grad():
        maps = target.maps(decoys)
    drawn = torch.randn(maps.shape, generator=generator).to(maps).flatten(1)
    drawn = drawn * (noise * _length(maps) / _length(drawn))[:, None]
    back, _ = inverted(replace(target, wanted=maps + drawn.view_as(maps)))
    return _length(back - decoys) / _length(_centred(decoys)).clamp_min(TINY)


@dataclass(frozen=True)
class PixelSpace:
    """The space of images.

    shape: (C, H, W).
    bounds: lowest and highest value, (1, C, 1, 1) each, None where they are not known: a range of 1 is assumed.
    """

    shape: tuple[int, int, int]
    bounds: tuple[Tensor, Tensor] | None

    @cached_property
    def range(self) -> float:
        """Highest minus lowest value, 1 where they are not known."""
        return 1.0 if self.bounds is None else float((self.bounds[1] - self.bounds[0]).mean())

    @cached_property
    def middle(self) -> Tensor:
        """The middle of the bounds, 0 where they are not known: (1, C or 1, 1, 1), on the CPU."""
        return torch.zeros(1, 1, 1, 1) if self.bounds is None else (self.bounds[0] + self.bounds[1]).cpu() / 2

    def improbability(self, images: Tensor) -> Tensor:
        """Compute −2 log p (M,) a pixel, up to a constant, of images (M, C, H, W) under the prior of photographs that
        `attacks.span.feature_space.single_image` has. Here they go on without edges, so that waves are independent: the
        variance of one is the Fourier transform of exp(−distance / length), 2π a / (a² + k²)^(3/2), a = 1 / length."""
        own, (channels, height, width) = SINGLE_IMAGE, self.shape
        down, across = (2 * math.pi * torch.fft.fftfreq(size, device=images.device) for size in (height, width))
        inverse = 1 / (own.length * max(height, width))
        variance = 2 * math.pi * inverse / (inverse**2 + down[:, None] ** 2 + across**2) ** 1.5 + own.grain
        centred = (images - self.middle.to(images)) / (self.range * own.deviation)
        grey = centred.mean(1, keepdim=True)
        color = (centred - grey) * math.sqrt(max(1, channels - 1) / (own.color_share * channels))
        waves = torch.fft.fft2(torch.cat([grey, color], 1), norm="ortho").abs().square()
        return (waves / variance).sum(1).mean((1, 2))

    def inside(self, images: Tensor) -> Tensor:
        """Return the images (M, C, H, W) with every value moved into the bounds, where there are any."""
        return images if self.bounds is None else torch.minimum(torch.maximum(images, self.bounds[0]), self.bounds[1])

    def decoys(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw synthetic images (count, C, H, W) with the contrast of photographs, about the middle of the bounds."""
        leaves = dead_leaves(count, self.shape, generator)
        return self.middle + self.range * MAP_INVERSION.decoy_contrast * leaves


@dataclass(frozen=True)
class Scales:
    """Images as sums of images of several sizes, each scaled up bilinearly to the full one.

    sizes: (h, w) from 1 x 1, each twice the one before, to the full size.
    channels: C.
    """

    channels: int
    sizes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, shape: tuple[int, int, int]) -> "Scales":
        """Make those of images (C, H, W)."""
        channels, height, width = shape
        count = math.ceil(math.log2(max(height, width)))
        halved = [(math.ceil(height / 2**k), math.ceil(width / 2**k)) for k in range(count, -1, -1)]
        return cls(channels, tuple(halved))

    def random(self, count: int, generator: torch.Generator) -> list[Tensor]:
        """Draw coordinates of `count` random images, one tensor (count, C, h, w) for each size."""
        shapes = [(count, self.channels, *size) for size in self.sizes]
        return [MAP_INVERSION.start_deviation * torch.randn(shape, generator=generator) for shape in shapes]

    def images(self, coordinates: list[Tensor]) -> Tensor:
        """Return the images (M, C, H, W) with the coordinates of every size."""
        *coarse, full = coordinates
        return sum((interpolate(part, self.sizes[-1], mode="bilinear") for part in coarse), full)


def total_variation(images: Tensor) -> Tensor:
    """Return the mean length (M,) of the gradient over pixels, channels coupled (Blomgren and Chan 1998)."""
    across, down = pad(images.diff(dim=3), (0, 1)), pad(images.diff(dim=2), (0, 0, 0, 1))
    return (across.square() + down.square()).sum(1).add(TINY).sqrt().mean((1, 2))


def _descended(
    target: MapTarget,
    pixels: PixelSpace,
    descent: Descent,
    starts: int,
    generator: torch.Generator,
    progress: Progress,
) -> tuple[Tensor, Tensor]:
    """Return images (S · M, C, H, W) after Adam from S random starts for each wanted map, and their residuals."""
    own, steps = MAP_INVERSION, descent.steps
    scales = Scales.of(pixels.shape)
    start = scales.random(starts * len(target.wanted), generator)
    coordinates = [(pixels.range * part.to(target.wanted)).requires_grad_() for part in start]

    def gradients(step: int) -> tuple[Tensor, ...]:
        done = step / steps
        weight = own.first_variation * (own.last_variation / own.first_variation) ** done
        with torch.enable_grad():
            images = scales.images(coordinates)
            early = done / own.leaking_share
            blunt, sharp = own.pooling_sharpness
            sharpness = blunt * (sharp / blunt) ** early if early < 1 else math.inf
            with relaxed(own.leak * max(0.0, 1 - early), sharpness):
                misfit = target.misfit(images)
            outside = ((images - pixels.inside(images)) / pixels.range).square().flatten(1).mean(1)
            loss = misfit + weight / pixels.range * total_variation(images) + own.bounds_weight * outside
            if target.prior:
                loss = loss + target.prior * pixels.improbability(images)
            found = torch.autograd.grad(loss.sum(), coordinates)
        if step % MAP_SEARCH.reported_every == 0:
            progress(step, steps, float(misfit.detach().mean().sqrt()))
        return found

    variables = [(part, pixels.range * descent.rate) for part in coordinates]
    descend(gradients, variables, steps, betas=(own.betas[0], own.betas[1]))
    with torch.no_grad():
        images = pixels.inside(scales.images(coordinates))
        return images, target.misfit(images).sqrt()


def _length(images: Tensor) -> Tensor:
    return images.flatten(1).norm(dim=1)


def _centred(images: Tensor) -> Tensor:
    """Return the images without their mean colours."""
    return images - images.mean((2, 3), keepdim=True)
