"""BatchNorm as the client ran it, told from checkpoints: where it normalized with its batches, its statistics moved."""

import copy

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
            layer.register_forward_hook(_by_the_batch)
    return model


def _by_the_batch(layer: nn.Module, given: tuple[Tensor], output: Tensor) -> Tensor:
    """What takes the place of the layer's output in evaluation mode, which normalizes by running statistics."""
    (inputs,) = given
    if not isinstance(layer, _BatchNorm) or inputs.numel() == inputs.shape[1]:
        return output
    return F.batch_norm(inputs, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)
