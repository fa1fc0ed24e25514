"""From feature vectors to exact pixels, and from the first step of a client with momentum to the ones after it.

**Pixels** (`invert_features`, `PixelTest`): a feature vector h is inverted through the layers before the fully
connected ones, min ‖h(x) − h‖² / ‖h‖², and the image is then drawn to the zeros of ρ(x) = ‖g − P_k g‖² / ‖g‖², g =
[h(x); 1], P_k the projection on the k leading right singular vectors of the first fully connected layer's update. Small
k leaves few local minima, large k leaves out less of what a private image adds: k climbs a ladder. A prior on images
multiplies ρ and so never outweighs it.

**Momentum** (`Momentum`, `fit_factor`): with heavy-ball momentum μ (Polyak 1964), as torch.optim.SGD takes it, T steps
θ_{t+1} = θ_t − η v_t, v_t = μ v_{t−1} + ∇L_t, count from t = 0. Every later step repeats a gradient, so

    Δθ = −η Σ_t c_t ∇L_t,    c_t = 1 + μ + … + μ^(T−1−t) = (1 − μ^(T−t)) / (1 − μ).

The duals that Wedderburn's rank reduction finds (`UpdateFactors`) are those of Δθ: α = −η c_t ∂L/∂f. With
s_t = Σ_i Σ_k α_ik ∇f_k(x_i) over the images of step t,

    θ_1 = θ_0 + s_0 / c_0,    θ_{t+1} = θ_t + μ (θ_t − θ_{t−1}) + s_t / c_t.

One number is unknown of θ_1, c_0 between 1 and 1 / (1 − μ). The images of the next step tell it: their features lie in
the update's row space at θ_1 alone, so ρ is minimized over rough candidates for them and c_0 together. From c_0 and T
follow μ and all c_t.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.interface.torch_tools import cast_state, descend
from attacks.span.feature_space.network import FeatureNetwork
from attacks.span.search.descent import descend_points
from attacks.span.search.problems import outside
from attacks.span.thresholds import FEATURE, INVERSION, MOMENTUM, SEARCH, Descent


@dataclass(frozen=True)
class PixelTest:
    """Tests images by the ρ of their features.

    state: the parameters at which features are taken.
    rows: (R, D + 1), right singular vectors of the first fully connected layer's update, leading ones first.
    pixel_range: (low, high), (1, C, 1, 1) each, of the model's input space, where it is known.
    """

    network: FeatureNetwork
    state: State
    rows: Tensor
    pixel_range: tuple[Tensor, Tensor] | None = None

    def points(self, images: Tensor) -> Tensor:
        """Return the g = [h; 1] (M, D + 1) of images (M, C, H, W)."""
        h = self.network.features(self.state, images)
        return torch.cat([h, h.new_ones(len(h), 1)], 1)

    def residual(self, images: Tensor, rank: int, found: Tensor | None = None) -> Tensor:
        """Return ρ (M,) against the `rank` leading rows, deflated by orthonormal rows `found` (F, D + 1) if given."""
        g = self.points(images)
        size = g.square().sum(1)
        missed = outside(g, self.rows[:rank]).square().sum(1)
        return missed / (size if found is None else outside(g, found).square().sum(1) + SEARCH.deflation_floor * size)

    def expected_error(self, image: Tensor, typical: float) -> float:
        """Return E / `typical` of an image (C, H, W) at rest: what of it its features leave open.

        With n pixels, r = g − P g, and s_j the singular values of r's derivative by the pixels,

            σ² = ‖r‖² / (D − R − n),    E² = Σ_j min(σ² / s_j², typical² / n),

        the expected squared distance of the image from the point that r is the noise of (ordinary least squares), where
        no direction leaves more open than images differ in. typical: the usual distance of two images.
        """
        noise, slopes = self._slopes(image, torch.eye(image.numel()), INVERSION.difference)
        squares = torch.linalg.eigvalsh(slopes @ slopes.T).clamp_min(torch.finfo(torch.float64).tiny)
        least = typical**2 / image.numel()
        return float((noise**2 / squares).clamp_max(least).sum().sqrt()) / typical

    def overlooked(self, image: Tensor, typical: float) -> float:
        """Return how much of an image (C, H, W) at rest its features leave open in size, brightness or contrast, over
        `typical`: the largest of them. A network that normalizes its input does not see these. Each is one direction of
        n, and much of an image, so it is taken alone: σ / ‖∂r‖ along it, `typical` at most."""
        every = torch.ones_like(image)
        parts = [every, *(every * own for own in torch.eye(len(image)).to(image)[..., None, None])]  # all, each channel
        around = [part * (image - (part * image).sum() / part.sum()) for part in parts]
        changes = torch.stack([image, *parts, *around]).flatten(1).double()
        changes = changes / changes.norm(dim=1, keepdim=True).clamp_min(INVERSION.tiny)
        noise, slopes = self._slopes(image, changes, INVERSION.change * typical)
        return float((noise / slopes.norm(dim=1)).max().clamp_max(typical)) / typical

    def _slopes(self, image: Tensor, directions: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """Return (σ, the derivatives of r along `directions` (V, n), (V, D + 1)), by differences in float64."""
        exact = replace(self, state=cast_state(self.state, image.device, torch.float64), rows=self.rows.double())
        with torch.no_grad():
            around = image.double()[None]
            rest = outside(exact.points(around), exact.rows)
            moves = [step * some.to(around).view(-1, *image.shape) for some in directions.split(INVERSION.batch)]
            slopes = torch.cat([(outside(exact.points(around + move), exact.rows) - rest) / step for move in moves])
        spare = max(slopes.shape[1] - len(self.rows) - image.numel(), 1)
        return rest.norm() / spare**0.5, slopes

    def polish(self, images: Tensor, rank: int, descent: Descent, found: Tensor | None = None) -> Tensor:
        """Return the images (M, C, H, W) after descent of `loss`."""
        return descend_pixels(lambda x: self.loss(x, rank, found), images, descent)

    def loss(self, images: Tensor, rank: int, found: Tensor | None = None) -> Tensor:
        """Return log ρ + log(1 + weight · prior) (M,), ρ as `residual` has it; the prior says how rough images are and
        how far outside the range of pixels."""
        value = (self.residual(images, rank, found) + INVERSION.tiny).log()
        prior = INVERSION.prior_roughness * roughness(images)
        if self.pixel_range is not None:
            low, high = self.pixel_range
            prior = prior + ((images - high).relu() + (low - images).relu()).square().flatten(1).mean(1)
        return value + (INVERSION.prior_weight * prior).log1p()


def determined(tests: Sequence[PixelTest], images: Tensor, others: Tensor) -> Tensor:
    """Return of which images (M, C, H, W), each with a test of its own, the features leave no other images open, (M,)
    bool. others: (F, C, H, W), which say beside them how far apart images are."""
    pixels, together = images[:1].numel(), torch.cat([others, images]).flatten(1)
    typical = float(torch.pdist(together).median() if len(together) > 1 else together.norm())
    kept = list[bool]()
    for test, image in zip(tests, images, strict=True):
        with torch.no_grad():
            enough = int((test.points(image[None])[:, :-1] != 0).sum()) >= FEATURE.determined * pixels
        error = test.overlooked(image, typical) if enough else math.inf
        if enough and pixels <= FEATURE.most_pixels:
            error = max(error, test.expected_error(image, typical))
        kept.append(error < FEATURE.left_open)
    return torch.tensor(kept, dtype=torch.bool, device=images.device)


def invert_features(
    network: FeatureNetwork, state: State, features: Tensor, images: Tensor, descent: Descent, blur: float
) -> Tensor:
    """Find images (M, C, H, W) whose features at the parameters `state` are those given (M, D), from starting images.
    blur: weight of the roughness beside ‖h(x) − h‖² / ‖h‖²."""
    size = features.square().sum(1)

    def loss(x: Tensor) -> Tensor:
        missed = (network.features(state, x) - features).square().sum(1)
        return missed / size + blur * roughness(x)

    return descend_pixels(loss, images, descent)


def roughness(images: Tensor) -> Tensor:
    """Return the mean squared difference of horizontal and of vertical neighbours, added up: (M,)."""
    return sum((images.diff(dim=axis).square().flatten(1).mean(1) for axis in (2, 3)), images.new_zeros(len(images)))


def descend_pixels(loss: Callable[[Tensor], Tensor], images: Tensor, descent: Descent) -> Tensor:
    """Minimize a loss (M,) of images (M, C, H, W) by Adam on a half cosine, each image's gradient of length 1."""

    def of_length_one(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = loss(x)
            (gradient,) = torch.autograd.grad(value.sum(), x)
        length = gradient.flatten(1).norm(dim=1).clamp_min(INVERSION.tiny).view(-1, 1, 1, 1)
        return value.detach(), gradient / length

    return descend_points(of_length_one, images, descent) if len(images) else images


class Momentum(NamedTuple):
    """Momentum of a client, as its update shows it.

    value: μ.
    steps: T, or how many there are to the best of what is known.
    """

    value: float = 0.0
    steps: float = 1.0

    @classmethod
    def of(cls, factor: float, steps: float) -> "Momentum":
        """Return the momentum with which the first of so many steps counts `factor` times: 0 (once) to 1 (T times)."""
        if factor <= 1 or factor >= steps:
            return cls(float(factor > 1), steps)
        most = 1 - 1e-9  # there the sum is T to nine digits
        from scipy.optimize import brentq  # slow to import, and few clients have momentum

        return cls(brentq(lambda value: (1 - value**steps) / (1 - value) - factor, 0.0, most), steps)

    def weight(self, step: int) -> float:
        """Return c_t: by how many learning rates the gradient of step t, counted from 0, moves the last parameters."""
        left = max(self.steps - step, 1.0)
        return left if self.value == 1 else (1 - self.value**left) / (1 - self.value)


NO_MOMENTUM = Momentum()


def moved(state: State, along: State, by: Tensor | float) -> State:
    """Return `state` with `by` times `along` added to the parameters that `along` names."""
    return {**state, **{name: state[name] + by * value for name, value in along.items()}}


def next_state(states: list[State], step: State, momentum: Momentum) -> State:
    """Return θ_{t+1} from [θ_0, …, θ_t], the parameters before each step, and s_t of those that moved, by name."""
    t, now = len(states) - 1, states[-1]
    carried = {name: now[name] - states[-2][name] for name in step} if t else step
    return moved(moved(now, step, 1 / momentum.weight(t)), carried, momentum.value if t else 0.0)


def fit_factor(search: PixelTest, step: State, images: Tensor, factor: float) -> tuple[Tensor, float]:
    """Return (images (M, C, H, W), c_0) that minimize ρ at θ_0 + s_0 / c_0 together, from rough images and a factor, by
    Adam on both. search: the test of images at θ_0. step: s_0, by the names of the parameters that moved."""
    images, log_factor = images.detach().clone(), torch.tensor(factor).to(images).log()
    variables = (images.requires_grad_(), log_factor.requires_grad_())

    def gradients(step_number: int) -> tuple[Tensor, Tensor]:
        test = replace(search, state=moved(search.state, step, (-log_factor).exp()))
        gradient, of_factor = torch.autograd.grad(test.loss(images, len(test.rows)).mean(), variables)
        size = gradient.flatten(1).norm(dim=1).clamp_min(INVERSION.tiny).view(-1, 1, 1, 1)
        return gradient / size, of_factor

    rates = [(images, MOMENTUM.fit.rate), (log_factor, MOMENTUM.factor_rate)]
    descend(gradients, rates, MOMENTUM.fit.steps)
    return images.detach(), max(1.0, float(log_factor.detach().exp()))
