"""Which infinitely wide network KIP and RKIP distill for: three kernels by name.

They differ in how much each layer contributes to the kernel's diagonal. With two hidden layers and no biases that is

    limit           0, ½, ½         the limit of standard parameterization, in which the first layer vanishes
    authors         ⅓, ⅓, ⅓         NTK parameterization without biases, with which Loo et al. (2024) distilled
    width_matched   n₀/w : 1 : 1    the mean kernel of networks of the width w that will learn from the set

and a learner of width 512 on 784 pixels has 0.43, 0.28, 0.28. A set that is optimal for one kernel need not be for
another.
"""

from typing import Literal, get_args

from attacks.interface.errors import InputError, nearest
from attacks.kernel.infinite import InfiniteNTK

KernelName = Literal["limit", "authors", "width_matched"]
KERNELS: tuple[KernelName, ...] = get_args(KernelName)


def named_kernel(name: str, network: InfiniteNTK, width: int) -> InfiniteNTK:
    """The kernel of this name for a network of `width` whose own limit is `network`.

    network: its depth, biases and parameterization are those of the finite network. In NTK parameterization the mean
    kernel is the same at any width, so that `limit` and `width_matched` are one. Raises InputError for another name.
    """
    if name == "authors":
        return InfiniteNTK(network.depth, bias=False, parameterization="ntk")
    if name == "limit":
        return InfiniteNTK(network.depth, None, network.bias, parameterization=network.parameterization)
    if name == "width_matched":
        return InfiniteNTK(network.depth, width, network.bias, parameterization=network.parameterization)
    raise InputError(f"distillation kernel is {name!r}, unknown{nearest(name, list(KERNELS))}")
