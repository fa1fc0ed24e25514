"""BatchNorm as the client ran it, told from checkpoints: where it normalized with its batches, its statistics moved."""

import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.interface.observation import State


def as_trained(model: nn.Module, initial: State, final: State) -> nn.Module:
    """The network with every BatchNorm normalizing with the batch that it is given, if the statistics of that layer
    differ between the checkpoints; the same network where none do. Batch statistics are differentiable in the images,
    and nothing is averaged over batches. A layer that is given a single value per channel has no variance, and torch
    refuses it: it keeps its running statistics, as fedspill's clients do."""
    moved = [name for name in initial if name.endswith("running_var") and not torch.equal(initial[name], final[name])]
    if not moved:
        return model
    model = copy.deepcopy(model)
    for name in moved:
        layer = model.get_submodule(name.rpartition(".")[0])
        if isinstance(layer, _BatchNorm):
            setattr(layer, "forward", partial(_by_the_batch, layer))  # noqa: B010 - a method, to mypy
    return model


def _by_the_batch(layer: Any, inputs: Tensor) -> Tensor:
    alone = inputs.numel() == inputs.shape[1]
    mean, variance = (layer.running_mean, layer.running_var) if alone else (None, None)
    return F.batch_norm(inputs, mean, variance, layer.weight, layer.bias, training=not alone, eps=layer.eps)
