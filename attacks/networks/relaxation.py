"""Networks whose gradients reach what is switched off: for descents on the input of a network with frozen weights.

A ReLU that is off passes no gradient, and max pooling passes it to one entry of a window alone, so a descent from
elsewhere stays in local minima. Within `relaxed` a ReLU is leaky in the backward pass alone, and max pooling takes a
smooth maximum.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.utils import _pair
from torch.overrides import TorchFunctionMode

IN_PLACE = (torch.relu_, functional.relu_, torch.Tensor.relu_)
RELUS = (torch.relu, functional.relu, torch.Tensor.relu, *IN_PLACE)
MAX_POOLS = (functional.max_pool2d, torch.max_pool2d)


def in_place_of_relu(
    value: Callable[[Tensor], Tensor], function: Callable[..., Any], args: tuple, given: Mapping[str, Any]
) -> Tensor:
    """Return `value` of what one of the `RELUS` was called with, written into it where the network asked for that."""
    x = args[0] if args else given["input"]
    if function in IN_PLACE or given.get("inplace") or args[1:2] == (True,):
        return x.copy_(value(x.clone()))
    return value(x)


def smooth_max_pool(
    x: Tensor,
    sharpness: float,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
) -> Tensor:
    """Pool maps (M, C, H, W) with log mean exp(β u) / β as the maximum of a window u, from the mean for small β to the
    maximum. β is the sharpness divided by the standard deviation of each image's own maps."""
    kernel, dilated = _pair(kernel_size), _pair(dilation)
    steps, around = _pair(kernel_size if stride is None or stride == [] else stride), _pair(padding)
    size = [
        (length + 2 * edge - spread * (side - 1) - 1) // step + 1
        for length, edge, spread, side, step in zip(x.shape[2:], around, dilated, kernel, steps, strict=True)
    ]
    beta = sharpness / x.detach().flatten(1).std(1).clamp_min(1e-12).view(-1, 1, 1)
    filled = functional.pad(x, (around[1], around[1], around[0], around[0]), value=-math.inf)
    windows = functional.unfold(filled.flatten(0, 1)[:, None], kernel, dilated, 0, steps)
    windows = windows.view(len(x), x.shape[1], windows.shape[1], -1)
    maximum = (beta[..., None] * windows).logsumexp(2) - math.log(windows.shape[2])
    return (maximum / beta).view(*x.shape[:2], *size)


class relaxed(TorchFunctionMode):
    """Within it a ReLU that is off passes the share `leak` of its gradient, and max pooling is smooth with `sharpness`
    where that is finite, but for pooling with `ceil_mode` or `return_indices`."""

    def __init__(self, leak: float, sharpness: float = math.inf) -> None:
        super().__init__()
        self.leak, self.sharpness = leak, sharpness

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: Mapping | None = None
    ) -> Any:
        own = dict(kwargs or {})
        if self.leak and function in RELUS:
            # x − x is 0 and has a derivative
            leaky = partial(lambda leak, x: torch.where(x > 0, x, leak * (x - x.detach())), self.leak)
            return in_place_of_relu(leaky, function, args, own)
        if math.isfinite(self.sharpness) and function in MAX_POOLS:
            asked = {name: own.pop(name, False) for name in ("ceil_mode", "return_indices")}
            if len(args) <= 5 and not any(asked.values()):
                x, *rest = args if args else (own.pop("input"),)
                return smooth_max_pool(x, self.sharpness, *rest, **own)
        return function(*args, **(kwargs or {}))
