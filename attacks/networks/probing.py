"""Forward hooks that are gone when they have done their work."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

Hook = Callable[..., Tensor | None]
"""Called with (module, inputs, output) after a forward pass; what it returns takes the place of the output."""


@contextmanager
def watched(modules: Mapping[str, nn.Module], hook: Callable[[str], Hook]) -> Iterator[None]:
    """Within it every module has the forward hook that `hook` makes for its name."""
    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """By name, in the order of registration."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


@dataclass(frozen=True)
class InputLayer:
    """The linear layer that is fed the flattened images. scale: z = scale·Wx + b, 1 but in NTK parameterization."""

    weight: str
    bias: str | None
    scale: float


def find_input_layer(model: nn.Module, input_shape: tuple[int, int, int]) -> InputLayer | None:
    """Found by watching what every linear layer is given and gives, whatever surrounds it; None where there is none."""
    found: list[InputLayer] = []
    probe = torch.randn((2, *input_shape), generator=torch.Generator().manual_seed(0))

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if inputs[0].shape == (2, probe[0].numel()) and torch.equal(inputs[0].cpu(), probe.flatten(1)):
                weight, bias = cast(Tensor, module.weight), cast(Tensor | None, module.bias)
                product = inputs[0] @ weight.T
                scale = float((product * (output if bias is None else output - bias)).sum() / (product**2).sum())
                found.append(InputLayer(f"{name}.weight", None if bias is None else f"{name}.bias", scale))

        return hook

    parameter = next(model.parameters())
    with watched(linear_layers(model), watch), torch.no_grad():
        model.eval()(probe.to(parameter.device, parameter.dtype))
    return found[0] if found else None
