"""From feature vectors to pixels, and from rough pixels to exact ones.

A feature vector h is inverted through the layers before the fully connected ones, min ‖h(x) − h‖² / ‖h‖², and the image
is then drawn to the zeros of ρ(x) = ‖g − P_k g‖² / ‖g‖², g = [h(x); 1], P_k the projection on the k leading right
singular vectors of the first fully connected layer's update. Small k leaves few local minima, large k leaves out less
of what a private image adds: k climbs a ladder. A prior on images multiplies ρ and so never outweighs it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.span.feature_space.network import FeatureNetwork
from attacks.span.search.descent import descend, with_gradient
from attacks.span.search.problems import outside
from attacks.span.thresholds import INVERSION, SEARCH, Descent


@dataclass(frozen=True)
class PixelTest:
    """Tests images by the ρ of their features.

    state: the parameters at which features are taken. rows: (R, D + 1), right singular vectors of the first fully
    connected layer's update, leading ones first. pixel_range: (low, high), (1, C, 1, 1) each, of the model's input
    space, where it is known.
    """

    network: FeatureNetwork
    state: State
    rows: Tensor
    pixel_range: tuple[Tensor, Tensor] | None = None

    def points(self, images: Tensor) -> Tensor:
        """The g = [h; 1] (M, D + 1) of images (M, C, H, W)."""
        h = self.network.features(self.state, images)
        return torch.cat([h, h.new_ones(len(h), 1)], 1)

    def residual(self, images: Tensor, rank: int, found: Tensor | None = None) -> Tensor:
        """ρ (M,) against the `rank` leading rows, deflated by the orthonormal rows `found` (F, D + 1) where given."""
        g = self.points(images)
        size = g.square().sum(1)
        missed = outside(g, self.rows[:rank]).square().sum(1)
        return missed / (size if found is None else outside(g, found).square().sum(1) + SEARCH.deflation_floor * size)

    def polish(self, images: Tensor, rank: int, descent: Descent, found: Tensor | None = None) -> Tensor:
        """The images (M, C, H, W) after descent of `loss`."""
        return descend_pixels(lambda x: self.loss(x, rank, found), images, descent)

    def loss(self, images: Tensor, rank: int, found: Tensor | None = None) -> Tensor:
        """log ρ + log(1 + weight · prior) (M,), ρ as `residual` has it."""
        value = (self.residual(images, rank, found) + INVERSION.tiny).log()
        return value + (INVERSION.prior_weight * self._prior(images)).log1p()

    def _prior(self, images: Tensor) -> Tensor:
        """How rough the images are and how far outside the range of pixels, (M,)."""
        value = INVERSION.prior_roughness * roughness(images)
        if self.pixel_range is not None:
            low, high = self.pixel_range
            value = value + ((images - high).relu() + (low - images).relu()).square().flatten(1).mean(1)
        return value


def invert_features(
    network: FeatureNetwork, state: State, features: Tensor, images: Tensor, descent: Descent, blur: float
) -> Tensor:
    """Images (M, C, H, W) whose features at the parameters `state` are those given (M, D), from starting images. blur:
    weight of the roughness beside ‖h(x) − h‖² / ‖h‖²."""
    size = features.square().sum(1)

    def loss(x: Tensor) -> Tensor:
        missed = (network.features(state, x) - features).square().sum(1)
        return missed / size + blur * roughness(x)

    return descend_pixels(loss, images, descent)


def roughness(images: Tensor) -> Tensor:
    """The mean squared difference of horizontal and of vertical neighbours, added up: (M,)."""
    return sum((images.diff(dim=axis).square().flatten(1).mean(1) for axis in (2, 3)), images.new_zeros(len(images)))


def descend_pixels(loss: Callable[[Tensor], Tensor], images: Tensor, descent: Descent) -> Tensor:
    """Adam on a loss (M,) of images (M, C, H, W), its step size on a half cosine to 0.

    The gradient of every image is scaled to length 1: that of log ρ grows without bound towards a zero of ρ, and Adam's
    second moments would remember it.
    """
    derived = with_gradient(loss)

    def of_length_one(x: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = derived(x)
        return value, gradient / gradient.flatten(1).norm(dim=1).clamp_min(INVERSION.tiny).view(-1, 1, 1, 1)

    return descend(of_length_one, images, descent)
