"""The statistics with which BatchNorm normalized a client's batches, from the running ones that it returned.

In training mode BatchNorm normalizes by the mean and the variance of the batch and moves its running statistics,
r ← (1 − m) r + m b, b the batch's mean and unbiased variance. After T steps

    (r_T − (1 − m)^T r_0) / (1 − (1 − m)^T)

is a mean of the statistics of all T batches, the last ones weighing most; after one step it is that batch's, exactly.
Put into evaluation mode with them, the network makes of an image what it made of it during training. T is returned as
`num_batches_tracked`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.interface.observation import State
from attacks.networks.probing import probe


@dataclass(frozen=True)
class BatchStatistics:
    """What the running statistics before and after training tell.

    state: parameters and buffers as they were sent, with the mean statistics of the batches in place of the running
    ones, variances still unbiased ones. layers: names of the BatchNorm layers. steps: T.
    """

    state: State
    layers: tuple[str, ...]
    steps: int

    def at(self, model: nn.Module, image_shape: tuple[int, int, int], batch: int) -> State:
        """The state with the biased variances, by which a batch of so many images is normalized."""
        positions = _positions(model, self.layers, image_shape)
        biased = {
            f"{name}.running_var": self.state[f"{name}.running_var"] * (1 - 1 / max(2, batch * positions[name]))
            for name in self.layers
        }
        return {**self.state, **biased}


def read_statistics(model: nn.Module, initial: State, final: State) -> BatchStatistics | None:
    """None where no running statistic moved: there is none, or the client kept it, or used the one it received."""
    moved = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and module.track_running_stats
        and not torch.equal(initial[f"{name}.running_mean"], final[f"{name}.running_mean"])
    }
    if not moved:
        return None
    state = dict(initial)
    for name, module in moved.items():
        before, after = _batches(name, initial, final)
        # without a momentum, running statistics are the plain mean over all batches ever seen
        left = before / after if module.momentum is None else (1 - module.momentum) ** (after - before)
        for key in (f"{name}.running_mean", f"{name}.running_var"):
            averaged = (final[key].double() - left * initial[key].double()) / (1 - left)
            state[key] = averaged.to(initial[key])
    before, after = _batches(next(iter(moved)), initial, final)
    return BatchStatistics(state, tuple(moved), after - before)


def _batches(layer: str, initial: State, final: State) -> tuple[int, int]:
    """How many batches a layer had seen before and after training; one apart where that is not returned."""
    counted = f"{layer}.num_batches_tracked"
    if counted not in initial or counted not in final:
        return 0, 1
    before = int(initial[counted])
    return before, max(before + 1, int(final[counted]))


def _positions(model: nn.Module, layers: tuple[str, ...], image_shape: tuple[int, int, int]) -> dict[str, int]:
    """How many positions of an image a BatchNorm layer averages over."""
    seen: dict[str, int] = {}

    def visit(name: str, given: Tensor, output: Tensor) -> None:
        seen[name] = given[0, 0].numel()

    probe(model, torch.zeros(1, *image_shape), {name: model.get_submodule(name) for name in layers}, visit)
    return seen
