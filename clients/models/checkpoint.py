"""Weights for a network from a file that the user names. Nothing is downloaded, no code is run."""

import itertools
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from attacks.interface.errors import InputError
from clients.models.checkpoint_file import read_checkpoint


def load_checkpoint(model: nn.Module, path: str | Path, replace_head: bool = False) -> None:
    """Load any checkpoint into `model` (`read_checkpoint`); InputError where file and model do not fit.

    replace_head: leave the head of `model` (`find_head`) as it is, whatever the file has for it.
    """
    state = read_checkpoint(path, model.state_dict(), called="model.checkpoint")
    try:
        load_weights(model, state, replace_head)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        advice = "" if replace_head else "; model.replace_head leaves out a last layer of other classes"
        raise InputError(f"model.checkpoint {str(path)!r} does not fit the model: {reason}{advice}") from None


def load_weights(model: nn.Module, state: Mapping[str, Tensor], replace_head: bool = False) -> None:
    """`load_state_dict`, without the head where that is to be replaced. RuntimeError as that raises."""
    if replace_head:
        head = f"{find_head(model)}."
        own = {name: value for name, value in model.state_dict().items() if name.startswith(head)}
        state = {name: value for name, value in state.items() if not name.startswith(head)} | own
    model.load_state_dict(state)


def find_head(model: nn.Module) -> str:
    """The name of the last linear layer, or of the largest submodule around it whose parameters are all of linear
    layers, such as torchvision's `fc` or `classifier`. InputError where there is none."""
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not linear:
        raise InputError("model.replace_head: the model has no linear layer to replace")
    last = [name for name, module in model.named_modules() if name in linear][-1]
    for path in itertools.accumulate(last.split("."), "{}.{}".format):
        inside = model.get_submodule(path).named_parameters(prefix=path)
        if all(name.rpartition(".")[0] in linear for name, _ in inside):
            break
    return path
