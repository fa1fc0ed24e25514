"""Which vector of a projection lies where: maps put together of the pixels that a cone gave up.

A 1x1 projection behind a depthwise convolution, as in MobileNets, is fed the pixels of a map, and the cone
(`attacks.span.feature_space.cone`) gives them up in no order. Three facts put them together:

- *How long they are* (`lengths`). BatchNorm behind the projection has a bias. Its update is the sum of the signals,
  and only one scale for every signal makes it that.
- *Whose they are* (`groups`). Where each place is alone until the mean over all of them, the signal of a pixel is Jᵀe,
  J its own Jacobian and e the error of its image at the outputs: one e for all pixels of an image.
- *Where they lie* (`arrange`). Maps of images of nobody tell which pixels are neighbours, by a Gaussian of whole maps
  (A). The update of the depthwise convolution, Σ_p g_p X_p with known gradients g and windows X that the neighbours
  tell in part, says how well an arrangement explains what the client sent (B). Both are log-likelihoods, so that their
  sum tells how much likelier one arrangement is than the next.

Images that are not like those of nobody stay apart: their best arrangement leaves much of the update.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attacks.span.thresholds import PLACES

AROUND = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
"""A place and its four neighbours, as (rows, columns) away."""


def lengths(update: Tensor, signals: Tensor) -> Tensor | None:
    """Find the lengths (F,) by which vectors are multiplied to be those that were fed; None where none fit.

    update: (W,), Σ_i δ_i, of true signals δ_i. signals: (F, W), those that go with the vectors as they are.
    """
    solved = torch.linalg.lstsq(signals.T, update[:, None]).solution[:, 0]
    left = float((signals.T @ solved - update).norm() / update.norm())
    return 1 / solved if left < PLACES.left_by_lengths and bool((solved > 0).all()) else None


def groups(signals: Tensor, jacobians: Tensor, count: int) -> list[Tensor] | None:
    """Find the indices of each image's pixels; None where their errors do not fall into so many groups of one size.

    signals: (F, W). jacobians: (F, K, W), of the outputs by what the projection gave at the pixel's place.
    """
    errors = torch.linalg.lstsq(jacobians.mT, signals[:, :, None]).solution[:, :, 0]
    size, left, found = len(errors) // count, torch.arange(len(errors)), list[Tensor]()
    while len(left):
        away = (errors[left] - errors[left[:1]]).norm(dim=1)
        order = away.argsort(stable=True)
        if len(left) > size and away[order[size]] < PLACES.apart * away[order[size - 1]]:
            return None
        found.append(left[order[:size]].sort().values)
        left = left[order[size:]].sort().values
    return found


@dataclass(frozen=True)
class Neighbours:
    """What images of nobody tell of maps (C, h, w) with P places, and of what a depthwise convolution made them of.

    mean: (C,), axes: (C, A), of the pixels of a map.
    middle: (P, a) and precision: (P, a, P, a), of the last `a` axes of whole maps.
    beside: (5, P, P), 1 where a place has another in a direction.
    weights: (5, A + 1, Q), which make the window of a place, Q = C·k·k, of the pixels around it.
    errors: (M, P, Q), what they miss in each of M maps.
    """

    mean: Tensor
    axes: Tensor
    middle: Tensor
    precision: Tensor
    beside: Tensor
    weights: Tensor
    errors: Tensor

    @classmethod
    def of(cls, maps: Tensor, windows: Tensor) -> "Neighbours":
        """Learn from maps (M, C, h, w) and windows (M, C·k·k, P), what the depthwise convolution saw, as `unfold`
        gives."""
        count, channels, height, width = maps.shape
        pixels = maps.flatten(2).mT.flatten(0, 1)
        mean = pixels.mean(0)
        values, vectors = torch.linalg.eigh((pixels - mean).T @ (pixels - mean) / len(pixels))
        kept = min(PLACES.pixel_axes, channels)
        axes = vectors[:, -kept:] / values[-kept:].clamp_min(PLACES.ridge * float(values[-1])).sqrt()
        codes = ((pixels - mean) @ axes).view(count, height * width, kept)
        whole = codes[:, :, -PLACES.map_axes :].double()
        beside = _beside(height, width).to(maps)
        inputs = torch.einsum("dpq,mqa->mpda", beside, _with_one(codes)).flatten(2).flatten(0, 1)
        targets = windows.mT.flatten(0, 1)
        gram = inputs.T @ inputs
        gram += PLACES.ridge * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
        weights = torch.linalg.solve(gram, inputs.T @ targets)
        errors = (targets - inputs @ weights).view(count, height * width, -1)
        shaped = weights.view(len(AROUND), kept + 1, -1)
        return cls(mean, axes, whole.mean(0), _precision(whole), beside, shaped, errors)

    def unlikely(self, pixels: Tensor) -> Tensor:
        """Return A (P, P, P, P): entry [p, i, q, j] is what pixel i at p beside pixel j at q adds to minus twice the
        log-likelihood, for pixels (P, C)."""
        codes = ((pixels - self.mean) @ self.axes)[None, :, -self.middle.shape[1] :].double() - self.middle[:, None]
        return torch.einsum("pia,paqb,qjb->piqj", codes, self.precision, codes)

    def parts(self, pixels: Tensor, gradients: Tensor) -> Tensor:
        """Compute (P, P, 5, Q): what pixel i adds to the depthwise update where pixel j lies in each direction from it,
        and, where i = j, by itself. gradients: (P, C), by what the depthwise convolution gave."""
        around, each = _with_one((pixels - self.mean) @ self.axes), self._per_window(gradients)
        return torch.einsum("ic,ja,dac->ijdc", each, around, self.weights)

    def noise(self, gradients: Tensor, generator: torch.Generator) -> "Whitened":
        """Make the noise of the sum over all images' pixels of what `parts` miss, from maps of M. gradients: (N·P,
        C)."""
        each, places = self._per_window(gradients), self.errors.shape[1]
        drawn = list[Tensor]()
        for _ in range(PLACES.noise_draws):
            which = torch.randint(len(self.errors), (len(each) // places,), generator=generator)
            order = torch.randperm(len(each), generator=generator)
            drawn.append((self.errors[which].flatten(0, 1) * each[order]).sum(0))
        return Whitened.of(torch.stack(drawn))

    def _per_window(self, gradients: Tensor) -> Tensor:
        return gradients.repeat_interleave(self.weights.shape[2] // gradients.shape[1], 1)


@dataclass(frozen=True)
class Whitened:
    """Noise of deviations `sizes` (B,) along `axes` (B, Q), and of `floor` across them."""

    axes: Tensor
    sizes: Tensor
    floor: Tensor

    @classmethod
    def of(cls, drawn: Tensor) -> "Whitened":
        """Make it from samples (S, Q) of mean zero."""
        _, values, axes = torch.linalg.svd(drawn / len(drawn) ** 0.5, full_matrices=False)
        kept = PLACES.noise_axes
        rest = (drawn.square().sum() / len(drawn) - values[:kept].square().sum()) / max(1, drawn.shape[1] - kept)
        floor = rest.clamp_min(0).sqrt()
        return cls(axes[:kept], (values[:kept].square() + floor.square()).sqrt(), floor)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return vectors (…, Q) in units of the noise, (…, B + Q)."""
        along = vectors @ self.axes.T
        return torch.cat([along / self.sizes, (vectors - along @ self.axes) / self.floor], -1)


@dataclass(frozen=True)
class Arranged:
    """The likeliest arrangement of the pixels of N images.

    places: (N, P), the pixel at each place.
    margin: (N,), by how many nats it is likelier than the next one tried that makes another map of it.
    misfit: mean square of what it leaves of the depthwise update, in units of the noise.
    """

    places: Tensor
    margin: Tensor
    misfit: float

    @property
    def certain(self) -> Tensor:
        """(N,) bool: of which images the places are told."""
        return (self.margin > PLACES.margin) & (self.misfit < PLACES.most_misfit)


def arrange(
    neighbours: Neighbours, pixels: Tensor, gradients: Tensor, update: Tensor, generator: torch.Generator
) -> Arranged:
    """Find where the pixels (N, P, C) of N images lie. gradients: (N, P, C), by what the depthwise convolution gave.
    update: (C·k·k,), Σ g X, the negative of its update over the learning rate that the gradients have, too."""
    white = neighbours.noise(gradients.flatten(0, 1), generator)
    # in float64: swaps are compared by small differences of large sums, and the search has to end
    parts = [white(neighbours.parts(*one)).flatten(0, 2).double() for one in zip(pixels, gradients, strict=True)]
    evidence = _Evidence(neighbours, [neighbours.unlikely(one) for one in pixels], parts, white(update).double())
    tops = [evidence.likely_maps(n, generator) for n in range(len(pixels))]
    ends = [evidence.climbed([top[min(rank, len(top) - 1)] for top in tops], tops) for rank in range(PLACES.ends)]
    best = max(ends, key=evidence.value)
    margins = list[Tensor]()
    for n, own in enumerate(best):
        others = torch.cat([_swapped(own[None])[0], tops[n], *(end[n][None] for end in ends)])
        moved = (pixels[n][others] - pixels[n][own]).flatten(1).norm(dim=1)
        others = others[moved > PLACES.alike * pixels[n].norm()]
        values = evidence.values(n, torch.cat([own[None], others]), best, tempered=True)
        margins.append(values[0] - values[1:].max())
    return Arranged(torch.stack(best), torch.stack(margins), evidence.misfit(best))


class _Evidence:
    """Log-likelihoods of arrangements: A of each image's map, B of what all of them add to the update."""

    def __init__(self, neighbours: Neighbours, unlikely: list[Tensor], parts: list[Tensor], update: Tensor) -> None:
        self.unlikely, self.beside, self.update = unlikely, neighbours.beside, update
        self.axes = neighbours.middle.numel()
        count = range(len(parts))
        self.pull = [part @ update for part in parts]
        self.gram = {(n, m): parts[n] @ parts[m].T for n in count for m in count if n <= m}

    def likely_maps(self, n: int, generator: torch.Generator) -> Tensor:
        """Find the arrangements (R, P) of image n that A likes best, from random ones by swaps."""
        places = len(self.beside[0])
        found = torch.stack([torch.randperm(places, generator=generator) for _ in range(PLACES.starts)])
        values = self._of_map(n, found)
        moving = torch.arange(len(found))
        while len(moving):
            tried = _swapped(found[moving])
            best, which = self._of_map(n, tried).max(1)
            up = best > values[moving] + PLACES.gain
            moving, which, best, tried = moving[up], which[up], best[up], tried[up]
            found[moving], values[moving] = tried[torch.arange(len(which)), which], best
        found = torch.unique(found, dim=0)
        return found[self._of_map(n, found).argsort(descending=True, stable=True)[: PLACES.kept]]

    def climbed(self, places: list[Tensor], tops: list[Tensor]) -> list[Tensor]:
        """Find better arrangements of all images, one swap, or one of `tops`, of one image at a time."""
        places, better = list(places), True
        while better:
            better = False
            for n, own in enumerate(places):
                tried = torch.cat([own[None], _swapped(own[None])[0], tops[n]])
                values = self.values(n, tried, places)
                if values.max() > values[0] + PLACES.gain:
                    places[n], better = tried[int(values.argmax())], True
        return places

    def value(self, places: list[Tensor]) -> float:
        """Return A + B of one arrangement of every image, up to a constant."""
        maps = sum(float(self._of_map(n, own[None])) for n, own in enumerate(places))
        return maps - len(self.update) / 2 * self.misfit(places)

    def values(self, n: int, tried: Tensor, places: list[Tensor], tempered: bool = False) -> Tensor:
        """Return A + B (R,) where image n is arranged in ways (R, P) and the others are as they are, up to a constant.

        tempered: each over what it leaves of `places` in units of its noise, if that is more than 1: images are not
        quite as those of nobody.
        """
        pull = self.pull[n]
        for m, other in enumerate(places):
            if m != n:
                pull = pull - self._gram(n, m)[:, self._indices(other[None])[0]].sum(1)
        own = self._indices(tried)
        among = self.gram[n, n][own[:, :, None], own[:, None]].sum((1, 2))
        of_map, of_update = 1.0, 1.0
        if tempered:  # -2 A over the number of coordinates of a map, and the misfit
            of_map, of_update = -2 * float(self._of_map(n, places[n][None])) / self.axes, self.misfit(places)
        return self._of_map(n, tried) / max(1, of_map) + (pull[own].sum(1) - among / 2) / max(1, of_update)

    def misfit(self, places: list[Tensor]) -> float:
        """Return the mean square of what is left of the update, in units of the noise."""
        own = [self._indices(one[None])[0] for one in places]
        explained = sum(float(self.pull[n][one].sum()) for n, one in enumerate(own))
        both = sum(
            float(self._gram(n, m)[one][:, other].sum()) for n, one in enumerate(own) for m, other in enumerate(own)
        )
        return (float(self.update.square().sum()) - 2 * explained + both) / len(self.update)

    def _gram(self, n: int, m: int) -> Tensor:
        return self.gram[n, m] if n <= m else self.gram[m, n].T

    def _of_map(self, n: int, tried: Tensor) -> Tensor:
        """Return A (…,) of arrangements (…, P)."""
        size = tried.shape[-1]
        own = torch.arange(size) * size + tried
        return -self.unlikely[n].reshape(-1)[own[..., :, None] * size**2 + own[..., None, :]].sum((-1, -2)) / 2

    def _indices(self, tried: Tensor) -> Tensor:
        """Return the indices of the parts that arrangements (R, P) are made of (R, all pairs of neighbouring
        places)."""
        size, own = tried.shape[1], list[Tensor]()
        for direction, beside in enumerate(self.beside):
            here, there = beside.nonzero().T
            own.append((tried[:, here] * size + tried[:, there]) * len(AROUND) + direction)
        return torch.cat(own, 1)


def _swapped(places: Tensor) -> Tensor:
    """Return arrangements (R, P) with every two pixels swapped, (R, P (P − 1) / 2, P)."""
    one, two = torch.triu_indices(places.shape[1], places.shape[1], 1)
    found, rows = places[:, None].repeat(1, len(one), 1), torch.arange(len(one))
    found[:, rows, one], found[:, rows, two] = places[:, two], places[:, one]
    return found


def _beside(height: int, width: int) -> Tensor:
    """Return (5, P, P): 1 where the second place lies in that direction of the first."""
    places = torch.arange(height * width)
    row, column, found = places // width, places % width, list[Tensor]()
    for down, right in AROUND:
        there = (row + down >= 0) & (row + down < height) & (column + right >= 0) & (column + right < width)
        found.append(one_hot((places + down * width + right) * there, len(places)) * there[:, None])
    return torch.stack(found)


def _with_one(codes: Tensor) -> Tensor:
    return torch.cat([codes, torch.ones_like(codes[..., :1])], -1)


def _precision(whole: Tensor) -> Tensor:
    """Compute the inverse covariance (P, a, P, a) of maps (M, P, a), in part shrunk to that of places by themselves."""
    count, places, axes = whole.shape
    flat = (whole - whole.mean(0)).flatten(1)
    covariance = flat.T @ flat / count
    alone = torch.block_diag(*covariance.view(places, axes, places, axes).diagonal(dim1=0, dim2=2).movedim(2, 0))
    covariance = (1 - PLACES.shrunk) * covariance + PLACES.shrunk * alone
    covariance += PLACES.ridge * covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
    return torch.linalg.inv(covariance).view(places, axes, places, axes)
