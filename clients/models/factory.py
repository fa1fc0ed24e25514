"""Make an `nn.Module` from a model section: built-in networks and the user's own."""

import fnmatch
import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from attacks.interface.errors import InputError, did_you_mean, one_line
from attacks.interface.observation import unwrapped
from attacks.interface.plugins import Registry, load_object, own_traceback, require_allowed, subclass_of
from attacks.interface.torch_tools import derive_seed, torch_generator
from attacks.networks.probing import scores_of
from clients.config import ModelConfig, ModelOptionError, ModelOptions, first_fault
from clients.models.checkpoint import load_checkpoint
from clients.models.networks import LeNet5Options, MLPOptions, NTKLinear, ResNet18Options, ViTTinyOptions

COPIES = 12  # of a network's parameters, in float32, that checks and attacks hold at a time


MODELS: Registry[type[ModelOptions]] = Registry(
    "model", "fedspill.models", subclass_of(ModelOptions), "; your own is FILE.py:NAME or package.module:NAME"
)
MODELS |= {"mlp": MLPOptions, "lenet5": LeNet5Options, "resnet18": ResNet18Options, "vit_tiny": ViTTinyOptions}
# standard deviation of a normal distribution truncated at ±2σ, by which Flax corrects its initializers
TRUNCATED_STD = 0.87962566103423978


def model_options(config: ModelConfig) -> ModelOptions:
    """Return the options of a built-in network, with its defaults; raise ModelOptionError for unknown ones."""
    try:
        section = MODELS.find(config.name)
    except InputError as error:
        reason = str(error).replace(f"unknown model {config.name!r}", "unknown", 1)
        wrong = {"type": "value_error", "loc": ("name",), "msg": reason, "input": config.name}
        raise ModelOptionError(config.name, wrong) from None
    try:
        return section.model_validate(config.options)
    except ValidationError as error:
        raise ModelOptionError(config.name, first_fault(error), list(section.model_fields)) from None


def with_known_options(config: ModelConfig) -> ModelConfig:
    """Return the config after a check of the options of a built-in network; a factory checks its own."""
    if ":" not in config.name:
        model_options(config)
    return config


def option_values(config: ModelConfig) -> dict[str, Any]:
    """Return every option of the network by name, with defaults."""
    return model_options(config).model_dump() if ":" not in config.name else config.options


def build_model(config: ModelConfig, shape: tuple[int, int, int], outputs: int, seed: int) -> nn.Module:
    """Build the initial network for images (C, H, W), on the CPU, in evaluation mode; own factories fit outputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "own initialization"))
        model = construct(config, shape, outputs)
    if not any(True for _ in model.parameters()):
        raise InputError(f"model {config.name!r} has no parameters: there is nothing to train or to attack")
    scheme = config.initialization or ("lecun_truncated" if ":" not in config.name else "own")
    if scheme != "own":
        initialize(model, scheme, torch_generator(seed, "initialization"))
    _freeze(model, config.frozen)
    fit = (
        "name in `model` a network that takes these, or in `data` images that it takes (for one channel, saved in grey)"
    )
    found = outputs_of(model, config.name, shape, fit)
    if found != (outputs,):
        raise InputError(
            f"model {config.name!r} has outputs of shape {found}, the labels need ({outputs},): "
            "change the model's last layer, or data.task and training.loss"
        )
    model = model.to(getattr(torch, config.precision))
    if config.checkpoint is not None:
        load_checkpoint(model, config.checkpoint, config.replace_head)
    return model.eval()


def initialize(model: nn.Module, scheme: str, generator: torch.Generator) -> None:
    """Draw LeCun-normal weights (variance 1/fan_in), truncated at two standard deviations or not, with zero biases.
    Layers in NTK parameterization get N(0, 1) weights. Other modules keep the weights of their constructors."""
    for layer in model.modules():
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        std = 1.0 if isinstance(layer, NTKLinear) else 1 / math.sqrt(layer.weight[0].numel())
        if scheme == "lecun_truncated" and not isinstance(layer, NTKLinear):
            std /= TRUNCATED_STD
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
        else:
            nn.init.normal_(layer.weight, std=std, generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def load_factory(name: str) -> Callable[..., nn.Module]:
    """Load the callable at `package.module:NAME` or `FILE.py:NAME`; raise InputError if it may not run."""
    require_allowed(name)
    found = load_object(name, "model")
    if not callable(found):
        raise InputError(f"model {name!r} is a {type(found).__name__}, no function: it has to return an nn.Module")
    return found


def construct(config: ModelConfig, shape: tuple[int, int, int], outputs: int) -> nn.Module:
    """Construct the network, with the weights of its constructor. A factory of the user's own ignores outputs."""
    if ":" not in config.name:
        MODELS.find(config.name)  # raises for --model; a scenario's name was looked up before, with its line
        options = model_options(config)
        size = _size(options, shape, outputs)
        if size > (most := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (4 * COPIES)):
            counted = f"{size:,}" if math.isfinite(size) else "countless"
            enough = f"the memory of this machine is enough for {most:,}: lower its width or depth"
            raise InputError(f"model {config.name!r} would have {counted} parameters, and {enough}")
        return options.build(shape, outputs)
    factory = load_factory(config.name)
    _check_arguments(factory, config)
    try:
        model = factory(**config.options)
    except (Exception, SystemExit) as error:
        raise InputError(f"model {config.name!r} raised:\n{own_traceback(error)}") from None
    if not isinstance(model, nn.Module):
        raise InputError(f"model {config.name!r} returned {type(model).__name__}, not a torch.nn.Module")
    model, _ = unwrapped(model)  # DataParallel asks for the cards that it was made for
    # Hugging Face's networks return an object with `logits`
    model.register_forward_hook(lambda network, inputs, outputs: scores_of(outputs))
    return model


def check_left_out(model: nn.Module, name: str, shape: tuple[int, int, int], checkpoint: Mapping[str, Tensor]) -> None:
    """Raise InputError where a checkpoint leaves out tensors, as those of frozen layers, that each call of the factory
    draws anew: its clients had others."""
    own = {key: value for key, value in model.state_dict().items() if key not in checkpoint}
    again = construct(ModelConfig(name=name), shape, outputs=0).state_dict() if own else {}
    if drawn := [key for key, value in own.items() if not torch.equal(value, again[key])]:
        raise InputError(
            f"the checkpoint has no {drawn[0]!r}, and model {name!r} draws it anew with every call: load the weights "
            "there that your clients began with"
        )


def _check_arguments(factory: Callable[..., nn.Module], config: ModelConfig) -> None:
    """Raise InputError if the factory takes other arguments than it gets."""
    try:
        inspect.signature(factory).bind(**config.options)
    except TypeError as error:
        given = f"with {', '.join(config.options)}" if config.options else "without arguments"
        remedy = "name a function that needs no others, as `def make(): return Net(…)`, or give model.options in YAML"
        raise InputError(f"model {config.name!r} is called {given}: {error}; {remedy}") from None
    except ValueError:  # one without a signature, as some of C
        return


def _size(options: ModelOptions, shape: tuple[int, int, int], outputs: int) -> float:
    """Return the number of parameters of the network, without memory for it; infinity if torch cannot count them."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in options.build(shape, outputs).parameters())
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        return math.inf


def _freeze(model: nn.Module, patterns: list[str]) -> None:
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise InputError(f"model.frozen {pattern!r} matches no parameter{did_you_mean(pattern, names)}")
        for name in matched:
            model.get_parameter(name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"model.frozen {patterns} leaves no parameter to train")


def outputs_of(
    model: nn.Module, name: str, shape: tuple[int, int, int], remedy: str = "a shape is channels,height,width"
) -> tuple[int, ...]:
    """Return the shape of the model's outputs for one image (C, H, W); raise InputError if it takes no such images.
    remedy: for a layer that takes others."""
    parameter, entered = next(model.parameters(), torch.zeros(())), list[tuple[nn.Module, Any]]()
    try:
        with torch.no_grad(), register_module_forward_pre_hook(lambda *call: entered.append(call)):
            found = model.eval()(torch.zeros(2, *shape).to(parameter))
    except InputError as error:
        raise InputError(f"model {name!r}: {error}") from None
    except RuntimeError as error:
        reason = (entered and _misfit(model, *entered[-1], remedy)) or one_line(error)
        raise InputError(f"model {name!r} cannot take images of shape {shape}: {reason}") from None
    except (Exception, SystemExit) as error:
        wrap = "attacks give it one tensor of floats (N, C, H, W); wrap a model that takes anything else:"
        raise InputError(f"model {name!r} raised on images of shape {shape}: {wrap}\n{own_traceback(error)}") from None
    return tuple(found.shape[1:])


def count_scores(model: nn.Module, name: str, shape: tuple[int, int, int]) -> int:
    """Return how many scores the model gives an image (C, H, W); raise InputError unless they are a row."""
    if len(found := outputs_of(model, name, shape)) != 1:
        what = "return outputs.flatten(1)" if found else "of one number an image return (N, 1)"
        raise InputError(
            f"model {name!r} has outputs of shape {found}: a row of class scores is needed: {what}; for rows of a "
            "table begin `forward` with x.flatten(1)"
        )
    return found[0]


def _misfit(model: nn.Module, layer: nn.Module, given: tuple[Any, ...], remedy: str) -> str:
    """Return what a layer takes and what it gets, if that is why it raised; else ""."""
    what, wanted, place = "", 0, -1
    if isinstance(layer, nn.Linear):
        what, wanted = "numbers", layer.in_features
    elif isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        what, wanted, place = "channels", layer.in_channels, 1 - layer.weight.dim()
    name = next((name for name, part in model.named_modules() if part is layer), "")
    if isinstance(layer, nn.Embedding):
        return f"its layer {name!r} takes text, which is not attacked; its rows that moved tell a client's words"
    if not what or not given or given[0].dim() < -place or given[0].shape[place] == wanted:
        return ""
    return f"its layer {name!r} takes {wanted} {what} and gets {given[0].shape[place]}; {remedy}"
