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

from attacks.interface.observation import State


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
    layers = tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.track_running_stats
        and not torch.equal(initial[f"{name}.running_mean"], final[f"{name}.running_mean"])
    )
    if not layers:
        return None
    counted = f"{layers[0]}.num_batches_tracked"
    steps = max(1, int(final[counted]) - int(initial[counted])) if counted in final else 1
    state = dict(initial)
    for name in layers:
        momentum = getattr(model.get_submodule(name), "momentum")  # noqa: B009 - of no type that mypy knows
        left = 1 - 1 / steps if momentum is None else 1 - momentum  # None: a plain mean over the steps
        left = 0.0 if momentum is None else left**steps
        for part in ("running_mean", "running_var"):
            before, after = (given[f"{name}.{part}"].double() for given in (initial, final))
            state[f"{name}.{part}"] = ((after - left * before) / (1 - left)).to(initial[f"{name}.{part}"])
    return BatchStatistics(state, layers, steps)


def _positions(model: nn.Module, layers: tuple[str, ...], image_shape: tuple[int, int, int]) -> dict[str, int]:
    """How many positions of an image a BatchNorm layer averages over."""
    seen: dict[str, int] = {}

    def watch(name: str) -> object:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[name] = inputs[0][0, 0].numel()

        return hook

    handles = [model.get_submodule(name).register_forward_pre_hook(watch(name)) for name in layers]  # type: ignore[arg-type]
    try:
        with torch.no_grad():
            model(next(model.parameters()).new_zeros(1, *image_shape))
    finally:
        for handle in handles:
            handle.remove()
    return seen
