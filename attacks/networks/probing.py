"""Forward hooks that are gone when they have done their work."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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
