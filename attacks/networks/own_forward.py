"""Layers of a class of their own that are linear layers or convolutions by name alone.

The update of a linear layer or a convolution is a sum of outer products of its signals and what it was fed, that of
its bias a sum of the signals. A subclass with a `forward` of its own may teach its weight something else: inputs that
it normalizes, clamps or scales, weights that it standardizes or masks, a bias that it multiplies. What its update spans
is then nobody's image. Others, as where weights are rounded straight through or outputs scaled, keep the products.
"""

import copy
from collections.abc import Collection
from contextlib import suppress

import torch
from torch import Tensor, nn

from attacks.networks.probing import DRAWS, Hook, as_fed, captured, evaluating, probe_generator, random_images, watched

EXACT = 0.01  # relative to the largest entry of a gradient: 8 bits of what a layer is fed round it less


def layer_of_other_products(model: nn.Module, input_shape: tuple[int, int, int], moved: Collection[str]) -> str | None:
    """Find a layer whose weight moved (`moved` has its name) by something else than products of its signals and what it
    was fed, in training mode; its name, None where there is none."""
    own = copy.deepcopy(model) if (names := _of_own_forward(model, moved)) else model
    layers, fed = {name: own.get_submodule(name) for name in names}, dict[str, Tensor]()
    images = random_images(input_shape, DRAWS).to(next(own.parameters()))

    def into(name: str) -> Hook:
        return lambda module, inputs, output: fed.update({name: captured(inputs[0], images.dtype)})

    if names:
        with suppress(Exception), torch.no_grad(), evaluating(own), watched(layers, into):  # it may take no batch
            own(as_fed(images))
    return next((name for name in names if name in fed and not _learns_products(layers[name].train(), fed[name])), None)


def _of_own_forward(model: nn.Module, moved: Collection[str]) -> list[str]:
    """Return the names of linear layers and convolutions that moved and have a `forward` of their own."""
    return [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
        and f"{name}.weight".lstrip(".") in moved
        and getattr(layer.forward, "__func__", None) is not _plain(layer)
    ]


def _plain(layer: nn.Module) -> Hook:
    return nn.Linear.forward if isinstance(layer, nn.Linear) else nn.Conv2d.forward


def _learns_products(layer: nn.Module, fed: Tensor) -> bool:
    """Return whether signals at an outer and at an inner place of the first image's output (of the batch that is fed)
    give the weight what a plain layer's would, for the signals that reach the bias, if there is one."""
    weight, bias = layer.get_parameter("weight"), dict(layer.named_parameters(recurse=False)).get("bias")
    with suppress(RuntimeError), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        made, plain = (_of_first(layer, one) for one in (layer(fed), _plain(layer)(layer, fed)))
        signals = torch.randn(made.shape[1], generator=probe_generator()).to(made)
        for place in {0, len(made) // 2}:
            asked = [weight] if bias is None else [weight, bias]
            found = torch.autograd.grad(made[place] @ signals, asked, retain_graph=True)
            (unit,) = torch.autograd.grad(plain[place].sum(), weight, retain_graph=True)
            rows, own = found[0].flatten(1), unit.flatten(1)
            sent = (rows * own).sum(1) / own.square().sum(1) if bias is None else found[1]
            if not torch.allclose(rows, sent[:, None] * own, EXACT, EXACT * float(rows.abs().max())):
                return False
        return True
    return False


def _of_first(layer: nn.Module, made: Tensor) -> Tensor:
    """Return the output for the first image by places, (P, out)."""
    return made[0].reshape(-1, made.shape[-1]) if isinstance(layer, nn.Linear) else made[0].flatten(1).T
