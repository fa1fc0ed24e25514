"""BatchNorm in local training: the statistics that normalize, and the buffers that training moves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

BatchNormMode = Literal["train", "eval"]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def moving_statistics(model: nn.Module, mode: BatchNormMode) -> list[str]:
    """Return the names of the buffers that local training moves, as in `state_dict`; none if BatchNorm is in `eval`."""
    layers = _batch_norms(model) if mode == "train" else {}
    return [
        f"{name}.{part}".lstrip(".")
        for name, layer in layers.items()
        for part in STATISTICS
        if getattr(layer, part) is not None
    ]


@contextmanager
def training_mode(model: nn.Module, mode: BatchNormMode) -> Iterator[None]:
    """Put the network into training mode, and into evaluation mode afterwards.

    mode: `train`, BatchNorm normalizes with the mean and the variance of the batch and moves its running statistics
    towards them; `eval`, it normalizes with the running ones, and keeps them. Torch refuses a single value per channel
    (one image, a map of 1x1), which has no variance: such a layer uses its running statistics for that batch, so that
    every image is trained on, where drop_last would leave it out.
    """
    spared: set[nn.Module] = set()

    def spare(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if layer.training and inputs[0].numel() == inputs[0].shape[1]:
            layer.training = False
            spared.add(layer)

    def restore(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        layer.training = layer.training or layer in spared
        spared.discard(layer)

    model.train()
    handles = []
    for layer in _batch_norms(model).values():
        if mode == "eval":
            layer.eval()
        elif layer.running_mean is not None:
            handles += [layer.register_forward_pre_hook(spare), layer.register_forward_hook(restore)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        model.eval()


def _batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
