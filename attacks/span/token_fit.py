"""An image of a vision transformer by the tokens that were found of it.

Attention mixes all patches of an image into each of its tokens. So the tokens that were found say what the patches of
missing ones are, and all patches better than each by its own token: the image is sought with which the network feeds
its first layer these tokens, r_j = u_j − u of the network. How far each is off is not known. The likeliest image has
the least Σ_j D log ‖r_j‖ − log p, p the prior of photographs, found by least squares whose weights are 1 / ‖r_j‖. Their
normal equations say how far off its pixels have to be expected.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attacks.span.thresholds import TOKENS


@dataclass(frozen=True)
class PatchSpace:
    """What the patches of images can be, (base_p + z_p · directions) · rows at place p; z is called a point.

    rows: (k, n), orthonormal, n pixels in a patch.
    base: (P, k).
    directions: (q, k), orthonormal.
    improbability: −2 log p (M,) a pixel of points (M, P, q), a quadratic; 1 is that of a photograph.
    """

    rows: Tensor
    base: Tensor
    directions: Tensor
    improbability: Callable[[Tensor], Tensor]

    @property
    def shape(self) -> tuple[int, int]:
        """(P, q), of z."""
        return len(self.base), len(self.directions)

    def patches(self, points: Tensor) -> Tensor:
        """Return the patches (M, P, n) of points (M, P, q)."""
        return (self.base + points @ self.directions) @ self.rows

    def points(self, patches: Tensor) -> Tensor:
        """Return the points (M, P, q) that are nearest to patches (M, P, k), in terms of the rows."""
        return (patches - self.base) @ self.directions.T

    @cached_property
    def prior(self) -> tuple[Tensor, Tensor]:
        """Second and first derivative of −log p at z = 0, (P·q, P·q) and (P·q,)."""
        size = self.base.new_zeros(self.shape).numel()
        ones = torch.eye(size, dtype=self.base.dtype, device=self.base.device).unflatten(1, self.shape)
        first = self._slope(torch.zeros_like(ones[:1]))
        return torch.cat([self._slope(part) - first for part in ones.split(TOKENS.batch)]), first[0]

    def filled(self, z: Tensor, missing: Tensor) -> Tensor:
        """Return z (P, q) with the patches that are missing, (P,) bool, as they are likeliest beside the others."""
        second, first = self.prior
        own = self.entries(missing)
        rest = (z * ~missing[:, None]).flatten()
        rest[own] = -torch.linalg.solve(second[own][:, own], first[own] + second[own] @ rest)
        return rest.view_as(z)

    def drawn(self, z: Tensor, missing: Tensor, generator: torch.Generator) -> Tensor:
        """Draw z (M, P, q) with other patches in the place of those that are missing, as probable beside the others."""
        own = self.entries(missing)
        root = torch.linalg.cholesky(self.prior[0][own][:, own])
        noise = torch.randn(len(own), TOKENS.drawn, dtype=torch.float64, generator=generator).to(z)
        steps = torch.linalg.solve_triangular(root.mT, noise, upper=True).T * self.contrast(z)
        drawn = z.flatten().repeat(len(TOKENS.widths) * len(steps), 1)
        drawn[:, own] += torch.cat([width * steps for width in TOKENS.widths])
        return drawn.unflatten(1, self.shape)

    def contrast(self, z: Tensor) -> float:
        """Compute that of an image z (P, q), 1 being that of photographs; never zero."""
        return float(self.improbability(z[None]).clamp_min(TOKENS.exact).sqrt())

    def entries(self, patches: Tensor) -> Tensor:
        """Return the indices in z, flattened, of patches (P,) bool."""
        return patches[:, None].expand(self.shape).flatten().nonzero()[:, 0]

    def _slope(self, z: Tensor) -> Tensor:
        with torch.enable_grad():
            z = z.clone().requires_grad_()
            whole = len(self.base) * self.rows.shape[1] / 2 * self.improbability(z).sum()
            return torch.autograd.grad(whole, z)[0].flatten(1)


@dataclass(frozen=True)
class FittedImage:
    """An image that tokens tell.

    z: (P, q), its patches in a `PatchSpace`.
    noise: (J,), by how much it misses each token, the root of the mean square of an entry.
    error: of a pixel, to be expected, the root of the mean square, to the deviation of the image's pixels; infinite
        where tokens are too few, or one is another image's.
    """

    z: Tensor
    noise: Tensor
    error: float


@dataclass(frozen=True)
class ImageFit:
    """The tokens that were found of one image.

    space: what its patches can be.
    tokens: (J, D).
    feed: what the network feeds its first layer in their places (M, J, D), of images z (M, P, q).
    """

    space: PatchSpace
    tokens: Tensor
    feed: Callable[[Tensor], Tensor]

    def likeliest(self, z: Tensor, missing: Tensor, generator: torch.Generator) -> FittedImage:
        """Find the likeliest image from z (P, q), in which patches that are missing, (P,) bool, are filled; where it is
        not certain, from patches that are drawn in their place, too."""
        every = torch.ones_like(missing)
        if self.tokens.numel() <= z.numel():  # any image has these tokens, as far as equations go
            return FittedImage(z, self._noise(z[None])[0], math.inf)
        first = self.moved(z, every)
        if not missing.any() or first.error < TOKENS.certain:
            return first
        drawn = self.space.drawn(z, missing, generator)
        order = self._noise(drawn).median(1).values.argsort()[: TOKENS.ends]
        ends = [self.moved(drawn[i], missing) for i in order]
        best = min(ends, key=lambda end: float(end.noise.median()))
        return min(first, self.moved(best.z, every), key=lambda end: float(end.noise.median()))

    def moved(self, z: Tensor, free: Tensor) -> FittedImage:
        """Move the free patches, (P,) bool, of an image z (P, q) to the likeliest nearby, by steps of Levenberg and
        Marquardt."""
        own, damping = self.space.entries(free), TOKENS.damping
        second, first = (part / self.space.contrast(z) ** 2 for part in self.space.prior)
        for _ in range(TOKENS.steps):
            left, slopes = self._linear(z, own)
            noise = left.square().mean(1).sqrt()
            weights = 1 / noise.clamp_min(TOKENS.least_noise * float(noise.median()) + TOKENS.exact)[:, None]
            slopes, wanted = (weights * slopes).flatten(1), (weights * left).flatten()
            normal = slopes @ slopes.T + second[own][:, own]
            down = slopes @ wanted - (first + second @ z.flatten())[own]
            now = float(wanted.square().sum() + z.flatten() @ (second @ z.flatten() + 2 * first))
            then = math.inf
            while not then < now and damping < TOKENS.most_damping:
                end = z.flatten().index_add(
                    0, own, torch.linalg.solve(normal + damping * normal.diagonal().diag(), down)
                )
                missed = weights * self._left(end.view(1, *z.shape))[0]
                then = float(missed.square().sum() + end @ (second @ end + 2 * first))
                damping *= TOKENS.damped
            if not then < now:
                break
            z, damping = end.view_as(z), damping / TOKENS.damped**2
            if then > (1 - TOKENS.least_step) * now:
                break
        noise = self._noise(z[None])[0]
        one = float(noise.max()) < TOKENS.own * float(self.tokens.square().mean().sqrt())
        return FittedImage(z, noise, self._error(z, normal) if one else math.inf)

    def _error(self, z: Tensor, normal: Tensor) -> float:
        """Compute the error to be expected of z (P, q) by the normal equations of its free entries."""
        spare = self.tokens.numel() - len(normal)
        pixels = self.space.patches(z[None])
        variance = torch.linalg.inv(normal).trace() * (1 + len(normal) / spare) / pixels.numel()
        return float(variance.sqrt() / pixels.std())

    def _linear(self, z: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Return (r (J, D), the derivative of what the network feeds by the entries `own` (U,), (U, J, D)), by
        differences: networks need not be differentiable twice, or forwards."""
        step = TOKENS.difference * (float(z.square().mean().sqrt()) + TOKENS.exact)
        at = self.feed(z[None])
        slopes = []
        for part in own.split(TOKENS.batch):
            moved = z.flatten().repeat(len(part), 1)
            moved[torch.arange(len(part)), part] += step
            slopes.append((self.feed(moved.unflatten(1, z.shape)) - at) / step)
        return self.tokens - at[0], torch.cat(slopes)

    def _left(self, z: Tensor) -> Tensor:
        """Compute r (M, J, D) of images z (M, P, q)."""
        return torch.cat([self.tokens - self.feed(part) for part in z.split(TOKENS.batch)])

    def _noise(self, z: Tensor) -> Tensor:
        """Compute ‖r_j‖ / √D (M, J) of images z (M, P, q)."""
        return self._left(z).square().mean(2).sqrt()
