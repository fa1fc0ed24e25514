"""Remove weight decay from an update.

Weight decay multiplies the parameters by 1 − lr · λ at every step, so that after all of them

    θ_f = κ θ₀ + Σ_i d_i x̃_iᵀ,    κ = (1 − lr · λ)^steps (without momentum),

and θ_f − θ₀ has a share (κ − 1) θ₀ of full rank. Where the sum is zero, κ is the ratio of θ_f to θ₀: the directions in
which no image lies are the last singular vectors.
"""

from collections.abc import Callable

import torch
from torch import Tensor

IMAGE_FREE_SHARE = 0.5  # of the singular vectors, the last: taken to be free of images
MAX_ITERATIONS, STOP_CHANGE = 20, 1e-9  # of tail and factor in turn; the change of the factor that ends them
REQUIRED_DROP = 0.5  # the tail's norm has to fall to this share, or there was no decay to be seen


def decay_factor(initial: Tensor, final: Tensor, free: float = IMAGE_FREE_SHARE) -> float:
    """κ of a layer's weights (out, in) from both ends of training; 1.0 where the update shows no weight decay.

    Fixed point of: take the last singular vectors V of θ_f − κ θ₀, then κ = ⟨θ_f V, θ₀ V⟩ / ‖θ₀ V‖². free: the share of
    the smaller side that these are, in which no image may lie.
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
    return factor if 0 < factor < 1 and after < REQUIRED_DROP * undecayed else 1.0


def _accelerated(first: float, second: float, improved: Callable[[float], float]) -> float:
    """Where first, second, improved(second), … end if each change is the same share of the one before (Aitken 1926):
    decay that is strong beside the images' share takes many small steps otherwise."""
    third = improved(second)
    change = third - 2 * second + first
    end = first - (second - first) ** 2 / change if change else third
    return end if 0 < end <= 1 else third


def without_decay(initial: Tensor, final: Tensor, factor: float) -> Tensor:
    """θ₀ + (θ_f − κ θ₀) for θ_f, in float64: as if the client had trained without weight decay.

    factor: κ, known (1 − lr · λ)^steps or from `decay_factor`; the same for every trained parameter.
    """
    return final.double() + (1 - factor) * initial.double()


def _tail(update: Tensor, share: float) -> tuple[Tensor, float]:
    """(the last right singular vectors (in, T) of an update (out, in), the update's norm along them)."""
    filled = update.abs().sum(0) > 0
    squares, vectors = torch.linalg.eigh(update[:, filled].T @ update[:, filled])
    count = max(1, int(share * len(squares)))
    last = torch.zeros(update.shape[1], count, dtype=update.dtype, device=update.device)
    last[filled] = vectors[:, :count]
    return last, float(squares[:count].clamp_min(0).sum().sqrt())
