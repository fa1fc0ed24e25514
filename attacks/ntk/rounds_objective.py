"""Several rounds as one problem: the images are shared, every round and kernel has duals of its own.

    L(x̂, α) = Σ_r s_r² ‖Δθ_r − Σ_v Σ_j α^{rv}_j φ_{θ_rv}(x̂_j)‖²

is eq. 7 of Loo et al. (2024) with the rounds of a federation as the "multiple checkpoints along the trajectory" that
the paper leaves to future work. A client's updates shrink as it fits its images; with s_r = 1 the first round would
outweigh all others together, so every update is brought to the same length.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.interface.observation import State
from attacks.networks.mlp import Beta
from attacks.ntk.objective import Objective, squared_norm


def round_scales(deltas: Sequence[State]) -> list[float]:
    """s_r, one factor per update: all updates equally long, and together as long as one is in the root mean square.

    The loss then is in the units of a single round, and the penalty on the pixel range weighs as it does there; the
    factor of a single round is 1.
    """
    squares = [squared_norm(delta) for delta in deltas]
    mean = sum(squares) / len(squares)
    return [(mean / (square * len(squares))) ** 0.5 for square in squares]


class StackedObjective:
    """The sum of the losses of several rounds; see `attacks.ntk.objective.Objective` for the interface.

    images: (M, C, H, W). duals: (V, M, K), the V / R kernels of the first round, then those of the second, and so on.
    Parameters are called "round:name", counted from 0.
    """

    def __init__(self, rounds: Sequence[Objective]):
        self.rounds = list(rounds)
        self.delta = _joined([part.delta for part in self.rounds])

    def loss(self, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        return torch.stack([part.loss(images, dual, beta) for part, dual in self._parts(duals)]).sum()

    def gradient_sum(self, images: Tensor, duals: Tensor, beta: Beta) -> State:
        return _joined([part.gradient_sum(images, dual, beta) for part, dual in self._parts(duals)])

    def inner(self, direction: State, images: Tensor, duals: Tensor, beta: Beta) -> Tensor:
        directions = [{name: direction[f"{i}:{name}"] for name in part.delta} for i, part in enumerate(self.rounds)]
        values = [
            part.inner(along, images, dual, beta)
            for along, (part, dual) in zip(directions, self._parts(duals), strict=True)
        ]
        return torch.stack(values).sum()

    def _parts(self, duals: Tensor) -> list[tuple[Objective, Tensor]]:
        return list(zip(self.rounds, duals.split(len(duals) // len(self.rounds)), strict=True))


def _joined(states: Sequence[State]) -> State:
    return {f"{i}:{name}": value for i, state in enumerate(states) for name, value in state.items()}
