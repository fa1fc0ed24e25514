"""PyTorch's optimizers, without its compiler.

`torch.optim` marks some methods of an optimizer as not to be compiled, and the mark imports the compiler: two to four
seconds of every process that takes a single step, longer than the training of most simulated clients. Nothing is
compiled here. These classes are `torch.optim`'s with the marks taken off; a step gives the same bits.
"""

import inspect
from typing import TypeVar

import torch
from torch.optim import Optimizer

Kind = TypeVar("Kind", bound=Optimizer)
MARKED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def uncompiled(kind: type[Kind]) -> type[Kind]:
    """A class of optimizers whose methods are what `kind`'s do beneath their decorators. Steps are not differentiable:
    of the decorators only `no_grad` has to stay."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in MARKED}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


SGD = uncompiled(torch.optim.SGD)
Adam = uncompiled(torch.optim.Adam)
AdamW = uncompiled(torch.optim.AdamW)
LBFGS = uncompiled(torch.optim.LBFGS)
