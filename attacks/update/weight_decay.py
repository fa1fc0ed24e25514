"""Remove weight decay from an update.

Weight decay multiplies the parameters by 1 − lr · λ at every step, so that after all of them

    θ_f = κ θ₀ + Σ_i d_i x̃_iᵀ,    κ = (1 − lr · λ)^steps (without momentum),

and θ_f − θ₀ has a share (κ − 1) θ₀ of full rank. Where the sum is zero, κ is the ratio of θ_f to θ₀: the directions in
which no image lies are the last singular vectors.
"""

from dataclasses import replace

import torch
from torch import Tensor

from attacks.interface.observation import Observation, State

IMAGE_FREE_SHARE = 0.5  # of the singular vectors, the last: taken to be free of images
MAX_ITERATIONS, STOP_CHANGE = 20, 1e-9  # of tail and factor in turn; the change of the factor that ends them
REQUIRED_DROP = 0.5  # the tail's norm has to fall to this share, or there was no decay to be seen


def decay_factor(initial: Tensor, final: Tensor) -> float:
    """κ of a layer's weights (out, in) from both ends of training; 1.0 where the update shows no weight decay.

    Fixed point of: take the last singular vectors V of θ_f − κ θ₀, then κ = ⟨θ_f V, θ₀ V⟩ / ‖θ₀ V‖². Needs fewer images
    than half of the smaller side.
    """
    initial, final = initial.double(), final.double()
    if len(initial) < initial.shape[1]:
        initial, final = initial.T, final.T
    factor = 1.0
    undecayed = _tail(final - initial)[1]
    for _ in range(MAX_ITERATIONS):
        last, _ = _tail(final - factor * initial)
        start = initial @ last
        before, factor = factor, float((final @ last * start).sum() / start.square().sum().clamp_min(1e-300))
        if abs(factor - before) < STOP_CHANGE:
            break
    after = _tail(final - factor * initial)[1]
    return factor if 0 < factor < 1 and after < REQUIRED_DROP * undecayed else 1.0


def without_decay(observation: Observation, factor: float) -> Observation:
    """The observation with θ₀ + (θ_f − κ θ₀) for θ_f, in float64: as if the client had trained without weight decay.

    factor: κ, known (1 − lr · λ)^steps or from `decay_factor`; the same for every trained parameter of all pairs.
    """
    return replace(observation, pairs=tuple((first, _undone(first, last, factor)) for first, last in observation.pairs))


def _undone(initial: State, final: State, factor: float) -> State:
    return {
        name: final[name].double() + (1 - factor) * initial[name].double()
        if name in initial and final[name].is_floating_point()
        else final[name]
        for name in final
    }


def _tail(update: Tensor) -> tuple[Tensor, float]:
    """(the last right singular vectors (in, T) of an update (out, in), the update's norm along them)."""
    filled = update.abs().sum(0) > 0
    squares, vectors = torch.linalg.eigh(update[:, filled].T @ update[:, filled])
    count = max(1, int(IMAGE_FREE_SHARE * len(squares)))
    last = torch.zeros(update.shape[1], count, dtype=update.dtype, device=update.device)
    last[filled] = vectors[:, :count]
    return last, float(squares[:count].clamp_min(0).sum().sqrt())
