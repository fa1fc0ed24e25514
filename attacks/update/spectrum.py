"""Compute the singular values and the row space of a layer's update, undo weight decay, and count the images.

The update of the linear layer that is fed the images is [ΔW | Δb] = Σ_i δ_i [x_i; 1]ᵀ under any sequence of SGD steps:
its rank is the number of images (each view of an augmented image counts), and a pixel that never varies gives a column
proportional to Δb.

Weight decay multiplies the parameters by 1 − lr · λ at every step, so that after all of them

    θ_f = κ θ₀ + Σ_i d_i x̃_iᵀ,    κ = (1 − lr · λ)^steps (without momentum),

and θ_f − θ₀ contains (κ − 1) θ₀, which has full rank. Along the last singular vectors there is no image, so that the
sum vanishes and κ is the ratio of θ_f to θ₀.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from attacks.interface.observation import Observation, State
from attacks.networks.probing import find_input_layer, parameter_names

# Ratios of neighbouring singular values. That behind the private images is above 100 under SGD in float32 (48 clients
# with 2 to 15 digits: 4,000 and more) and 2 to 4 under several steps of Adam (the same clients: 2 in the median).
CLEAR_GAP = 10.0  # a wider gap is trusted: it lies between the two
SMALLEST_GAP = 2.0  # a narrower one is no gap
NOISE_EDGE = 1.2  # times the largest singular value of noise: rounding lies below (1.02 to 1.14 in eight updates)
NEAR_FLOOR = 4.0  # how many thresholds of Gavish and Donoho the first value of the floor may reach
# Shares of the largest singular value.
ROUNDING = 1e-4  # the rounding of float32 parameters lies below, images above
TINY = 1e-300  # in place of a largest value of zero: its square of a rounding is still a number
SMALLEST_VALUE = 1e-8  # `Spectrum.of` cannot tell smaller values from zero: the square root of float64's precision
LOST = 3e-8  # if half of the values lie below it, their vectors are rounding, and are made orthogonal


@dataclass(frozen=True)
class Spectrum:
    """The singular values of an update (out, in) and its row space.

    values: (R,), largest first, R the smaller side once empty rows and columns are gone.
    rows, columns: how many are left of each.
    vectors: (R, in), the right singular vectors, float64.

    R is 0 for an update of zero.
    """

    values: Tensor
    vectors: Tensor
    rows: int
    columns: int

    @classmethod
    def of(cls, update: Tensor) -> "Spectrum":
        """Decompose `update` by the eigenvalues of its smaller Gram matrix, in float64. That is fast, and accurate for
        values down to 1e-8 of the largest."""
        filled = update.abs().sum(0) > 0
        kept = update[update.abs().sum(1) > 0][:, filled].double()
        rows, columns = kept.shape
        if not rows:
            return cls(kept.new_zeros(0), kept.new_zeros(0, update.shape[1]), 0, 0)
        if rows < columns:
            squares, left = torch.linalg.eigh(kept @ kept.T)
            right = left.T @ kept
            right /= right.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
            if squares[len(squares) // 2] < LOST**2 * squares[-1]:  # as after one step in float64
                right = torch.linalg.qr(right.flip(0).T)[0].T.flip(0)
        else:
            squares, left = torch.linalg.eigh(kept.T @ kept)
            right = left.T
        values = squares.flip(0).clamp_min(0).sqrt()
        vectors = torch.zeros(len(values), update.shape[1], dtype=torch.float64, device=update.device)
        vectors[:, filled] = right.flip(0)
        return cls(values.clamp_min(values[0] * SMALLEST_VALUE), vectors, rows, columns)

    def count(self) -> int:
        """Return the rank above the noise floor; for a first layer, the number of images."""
        return self.image_count().count

    def image_count(self) -> "ImageCount":
        """Return the same, and whether it can be trusted. The rank is where a gap ends at the noise floor, else where
        one ends at rounding, else the number of values above the threshold of Gavish and Donoho."""
        smaller = min(self.rows, self.columns)
        if smaller < 2:
            return ImageCount(smaller, smaller == 1)  # a zero update says nothing of the images
        threshold = gavish_donoho(self.rows, self.columns) * self.values.median()
        counted = gap_to_noise_floor(self.values, threshold) or gap_to_rounding(self.values)
        return counted or ImageCount(self.above_noise(), False)

    def relative_residual(self, rank: int) -> float:
        """Return ‖Δ − Δ_rank‖ / ‖Δ‖: what the best approximation of this rank leaves of the update."""
        return float(self.values[rank:].norm() / self.values.norm())

    def noise(self, rank: int) -> float:
        """Return the standard deviation of an entry of Δ − Δ_rank."""
        return float(self.values[rank:].norm()) / (self.rows * self.columns) ** 0.5

    def floor_flatness(self) -> float:
        """Return the lower quartile of the values over their median, relative to the same ratio for independent errors
        of equal size. That ratio is about 1 − √β / 2 by the Marchenko-Pastur law at β = rows / columns (within 5 % up
        to β = 0.7). The result is 1 for an update of few images, and well below 1 if singular values keep falling."""
        shape = min(self.rows, self.columns) / max(self.rows, self.columns)
        quartile, median = (float(self.values[share * len(self.values) // 4]) for share in (3, 2))
        return quartile / median / (1 - shape**0.5 / 2)

    def share(self, deviation: float) -> float:
        """Return ‖E‖ / ‖Δ‖ for noise E with this standard deviation on each entry."""
        return deviation * (self.rows * self.columns) ** 0.5 / float(self.values.norm())

    def above_noise(self) -> int:
        """Count the singular values that stand above the threshold of Gavish and Donoho, for noise of unknown level."""
        return int((self.values > gavish_donoho(self.rows, self.columns) * self.values.median()).sum())

    def deviation(self, rank: int = 0) -> float:
        """Return the standard deviation of an entry of the noise, if all beyond `rank` is noise, from the median of
        what is left. The median of the Marchenko-Pastur law at β = rows / columns is about 1 − β/3, in units of the
        longer side (within 3 %)."""
        smaller, larger = sorted((self.rows - rank, self.columns - rank))
        return float(self.values[rank:].median()) / (larger * (1 - smaller / larger / 3)) ** 0.5

    def noise_edge(self, rank: int) -> float:
        """Return the largest singular value of the noise, if all beyond `rank` is noise: √rows + √columns deviations
        (Marchenko and Pastur 1967)."""
        return self.deviation(rank) * ((self.rows - rank) ** 0.5 + (self.columns - rank) ** 0.5)

    def ends_at_noise(self, rank: int) -> bool:
        """Return whether all values beyond `rank` are noise of independent entries, as rounding is, and all others well
        above. The gap need not be wide: the weakest of many images may stand just above the noise. Nor need it be the
        widest: a client's steps may leave wider ones. False if less than half of the values would be noise, which could
        then not be told from images."""
        if not 0 < rank < len(self.values) // 2:
            return False
        noise = NOISE_EDGE * self.noise_edge(rank)
        return bool(self.values[rank] < noise and self.values[rank - 1] > SMALLEST_GAP * self.values[rank])


def gavish_donoho(rows: int, columns: int) -> float:
    """Return ω(β) of the optimal hard threshold ω·median(σ) for unknown noise (Gavish and Donoho 2014, eq. 5)."""
    beta = min(rows, columns) / max(rows, columns)
    return 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43


@dataclass(frozen=True)
class ImageCount:
    """How many images an update shows.

    has_spectral_gap: whether the spectrum falls to its noise floor behind the count; else the count is a guess.
    """

    count: int
    has_spectral_gap: bool


def gap_to_noise_floor(spectrum: Tensor, threshold: Tensor) -> ImageCount | None:
    """Return the rank at the largest ratio of neighbours in the upper half, if the spectrum falls to its floor there;
    else None. The floor is the median. The spectrum has fallen to it if the value behind the gap lies within a few
    thresholds, or is nearer to the floor than the gap is wide: many steps leave some directions of rounding above the
    threshold. Adam's gaps are small."""
    floor = spectrum.median()
    clamped = spectrum.clamp_min(floor)
    ratios = clamped[:-1] / clamped[1:]
    ratios[len(ratios) // 2 :] = 1
    gap = int(ratios.argmax())
    following = clamped[gap + 1]
    if ratios[gap] > SMALLEST_GAP and (following <= NEAR_FLOOR * threshold or ratios[gap] > following / floor):
        return ImageCount(gap + 1, bool(ratios[gap] > CLEAR_GAP))
    return None


def gap_to_rounding(spectrum: Tensor) -> ImageCount | None:
    """Return the rank at the largest ratio of neighbours in the lower half, if the spectrum falls to rounding there;
    else None. So it does for more images than half of the rank that the pixels allow. The rank is never certain, since
    the pixels' own rank ends in the same way."""
    clamped = spectrum.clamp_min(spectrum[0].clamp_min(TINY) * ROUNDING**2)
    ratios = clamped[:-1] / clamped[1:]
    ratios[: len(ratios) // 2] = 1
    gap = int(ratios.argmax())
    if ratios[gap] > CLEAR_GAP and clamped[gap + 1] < ROUNDING * clamped[0]:
        return ImageCount(gap + 1, False)
    return None


def layer_update(delta: State, layer: str) -> Tensor:
    """Return [ΔW | Δb] of any layer, (out, in + 1), or ΔW alone if its bias is frozen or missing; a convolution's ΔW is
    flattened to (out, in)."""
    weight, bias = parameter_names(layer)
    parts = [delta[weight].flatten(1)] + ([delta[bias][:, None]] if bias in delta else [])
    return torch.cat(parts, 1)


def first_layer_update(observation: Observation) -> tuple[Tensor, Tensor | None] | None:
    """Return (ΔW (out, in), Δb (out,) or None) of the layer that is fed the images, in float64; None if that layer is
    frozen or missing.

    ΔW is divided by the layer's scale, so that the two are Σ δ_i x_iᵀ and Σ δ_i. The updates of several pairs are
    stacked, and the images span the rows of all.
    """
    layer = find_input_layer(observation.model, observation.input_shape)
    if layer is None or layer.weight not in observation.trainable:
        return None
    deltas = [observation.delta(pair) for pair in range(len(observation.pairs))]
    weight = torch.cat([delta[layer.weight] for delta in deltas])
    biases = [delta[layer.bias] for delta in deltas if layer.bias in delta]
    return weight / layer.scale, torch.cat(biases) if biases else None


def infer_image_count(observation: Observation) -> ImageCount | None:
    """Count the private images by the first layer's spectrum; None if no layer sees the images. Where signals add up to
    zero, as ahead of BatchNorm, it shows their differences, one less."""
    layer = first_layer_update(observation)
    if layer is None:
        return None
    weight, bias = layer
    found = Spectrum.of(weight if bias is None else torch.cat([weight, bias[:, None]], 1)).image_count()
    differences = bias is not None and 0 < float(bias.norm()) <= ROUNDING * float(weight.norm())
    return ImageCount(found.count + 1, found.has_spectral_gap) if differences else found


SHIFT = 2  # pixels between two views: twice what crops and shifts of small images usually are


def group_views(images: Tensor, count: int) -> Tensor:
    """Return which of `count` originals each of the images (M, C, H, W) shows: (M,) from 0, in order of first
    appearance. Average linkage (Sokal and Michener 1958) groups them by their distances up to views."""
    if len(images) <= 1:
        return torch.zeros(len(images), dtype=torch.long)
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import, and for augmenting clients only
    from scipy.spatial.distance import squareform

    distance = _up_to_views(images.double().cpu())
    found = fcluster(linkage(squareform(distance, checks=False), "average"), count, "maxclust").tolist()
    order = list(dict.fromkeys(found))
    return torch.tensor([order.index(group) for group in found])


def _up_to_views(images: Tensor) -> np.ndarray:
    """Return (M, M): the smallest L2 distance of two images over the shifts, wrapped around, and mirrorings of one."""
    steps = range(-SHIFT, SHIFT + 1)
    flat, nearest = images.flatten(1), torch.full((len(images), len(images)), float("inf"), dtype=torch.float64)
    for mirrored, down, right in product((images, images.flip(3)), steps, steps):
        nearest = torch.minimum(nearest, torch.cdist(flat, mirrored.roll((down, right), (2, 3)).flatten(1)))
    nearest = torch.minimum(nearest, nearest.T)
    return nearest.fill_diagonal_(0).numpy()


IMAGE_FREE_SHARE = 0.5  # of the singular vectors: the last ones, assumed to be free of images
MAX_ITERATIONS = 20  # of computing the tail and the factor in turn
STOP_CHANGE = 1e-9  # a smaller change of the factor ends the iteration, and a factor nearer to 1 is no decay
REQUIRED_DROP = 0.5  # the tail's norm has to fall to this share, or there was no decay to be seen


def decay_factor(initial: Tensor, final: Tensor, free: float = IMAGE_FREE_SHARE) -> float:
    """Return κ of a layer's weights (out, in) before and after training; 1.0 if the update shows no weight decay.

    κ is a fixed point: take the last singular vectors V of θ_f − κ θ₀, then κ = ⟨θ_f V, θ₀ V⟩ / ‖θ₀ V‖². free: how many
    vectors V has, as a share of the smaller side; no image may lie in them.
    """
    initial, final = initial.double(), final.double()
    if len(initial) < initial.shape[1]:
        initial, final = initial.T, final.T
    undecayed = _tail(final - initial, free)[1]

    def improved(factor: float) -> float:
        last, _ = _tail(final - factor * initial, free)
        start = initial @ last
        return float((final @ last * start).sum() / start.square().sum().clamp_min(1e-300))

    factor = 1.0
    for _ in range(MAX_ITERATIONS):
        before, factor = factor, _accelerated(factor, improved(factor), improved)
        if abs(factor - before) < STOP_CHANGE:
            break
    after = _tail(final - factor * initial, free)[1]
    return factor if 0 < factor < 1 - STOP_CHANGE and after < REQUIRED_DROP * undecayed else 1.0


def _accelerated(first: float, second: float, improved: Callable[[float], float]) -> float:
    """Return the limit of first, second, improved(second), … if each change is the same share of the one before (Aitken
    1926)."""
    third = improved(second)
    change = third - 2 * second + first
    end = first - (second - first) ** 2 / change if change else third
    return end if 0 < end <= 1 else third


def without_decay(initial: Tensor, final: Tensor, factor: float) -> Tensor:
    """Return θ₀ + (θ_f − κ θ₀), in float64: θ_f as if the client had trained without weight decay. factor: κ."""
    return final.double() + (1 - factor) * initial.double()


def _tail(update: Tensor, share: float) -> tuple[Tensor, float]:
    """Return (the last right singular vectors (in, T) of an update (out, in), the update's norm along them)."""
    filled = update.abs().sum(0) > 0
    squares, vectors = torch.linalg.eigh(update[:, filled].T @ update[:, filled])
    count = max(1, int(share * len(squares)))
    last = torch.zeros(update.shape[1], count, dtype=update.dtype, device=update.device)
    last[filled] = vectors[:, :count]
    return last, float(squares[:count].clamp_min(0).sum().sqrt())
