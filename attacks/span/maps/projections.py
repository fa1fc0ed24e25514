"""Maps put together of the vectors that a 1x1 projection behind a depthwise convolution was fed, as in MobileNets.

`attacks.span.maps.places` has the mathematics; this file asks the network for what that needs.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from attacks.interface.observation import State
from attacks.interface.torch_tools import cast_state
from attacks.networks.probing import evaluating, probe, random_images, run_network, watched
from attacks.span.maps.network import VectorLayer, feeding
from attacks.span.maps.patches import geometry
from attacks.span.maps.places import Arranged, Neighbours, arrange, groups, lengths
from attacks.span.thresholds import CONE, PLACES


@dataclass(frozen=True)
class Projection:
    """A 1x1 convolution that is fed the maps of a depthwise one.

    layer, depthwise: their names.
    norm: that of the BatchNorm behind the projection, None where there is none.
    size: (h, w) of the maps.
    image_shape: (C, H, W).
    """

    model: nn.Module
    layer: str
    depthwise: str
    norm: str | None
    size: tuple[int, int]
    image_shape: tuple[int, int, int]

    def neighbours(self, state: State, decoys: Tensor) -> tuple[Neighbours, Tensor] | None:
        """Learn what images of nobody (M, C, H, W) tell, and the slopes (C,) of maps by what the depthwise
        convolution gave; None where a map is not a line in that, and zero, as a ReLU makes it, or where that takes too
        much memory."""
        depthwise = self.model.get_submodule(self.depthwise)
        assert isinstance(depthwise, nn.Conv2d)
        if len(decoys) * math.prod(self.size) * depthwise.weight.numel() > PLACES.most_entries:
            return None
        layers = {name: self.model.get_submodule(name) for name in (self.depthwise, self.layer)}
        state, decoys = self._on_device(state, decoys)
        seen = {name: (given.cpu(), gave.cpu()) for name, given, gave in probe(self.model, decoys, layers, state)[1]}
        (inputs, given), (maps, _) = seen[self.depthwise], seen[self.layer]
        slopes = _slopes(given.movedim(1, 0).flatten(1), maps.movedim(1, 0).flatten(1))
        if slopes is None:
            return None
        windows = unfold(inputs.flatten(0, 1)[:, None], *geometry(depthwise))
        return Neighbours.of(maps, windows.view(len(maps), -1, windows.shape[2])), slopes

    def jacobians(self, state: State, pixels: Tensor) -> Tensor | None:
        """Compute the Jacobians (F, K, W) of the outputs by what the projection gives at one place of a map with pixel
        (F, C) there; None where they depend on the pixels at other places, or on a way around the projection."""
        places = math.prod(self.size)
        mixed = torch.arange(places) % len(pixels)
        maps = pixels[:, :, None, None].expand(-1, -1, *self.size)
        maps = torch.cat([maps, pixels[mixed].T.reshape(1, -1, *self.size)])
        given, outputs = self._outputs(state, maps, torch.zeros(1, *self.image_shape))
        _, again = self._outputs(state, maps, random_images(self.image_shape, 1))
        near = PLACES.alone * float(outputs.detach().std(0).max())
        alone = outputs[:-1][mixed].mean(0)
        if not (torch.allclose(outputs, again, atol=near) and torch.allclose(outputs[-1], alone, atol=near)):
            return None
        rows = [torch.autograd.grad(outputs[:, k].sum(), given, retain_graph=True)[0] for k in range(outputs.shape[1])]
        return torch.stack(rows, 1)[:-1, :, :, 0, 0].cpu()

    def _outputs(self, state: State, maps: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the projection gives for maps (F, C, h, w), and the network's outputs (F, K) as a function
        of that."""
        seen: list[Tensor] = []

        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen.append(output.detach().requires_grad_())
            return seen[0]

        layer, (state, maps) = self.model.get_submodule(self.layer), self._on_device(state, maps)
        fed, hooked = feeding(layer, maps), watched({self.layer: layer}, lambda name: hook)
        with evaluating(self.model), fed, hooked, torch.enable_grad():
            outputs = run_network(self.model, state, image.to(maps)).flatten(1)
        return seen[0], outputs

    def _on_device(self, state: State, images: Tensor) -> tuple[State, Tensor]:
        device = next(self.model.parameters()).device
        return cast_state(state, device, torch.float32), images.to(device)


def find_projection(model: nn.Module, image_shape: tuple[int, int, int], layer: VectorLayer) -> Projection | None:
    """Return the layer, if it is 1x1 and the convolution in front of it is a depthwise one that makes its maps."""
    kinds = (nn.Conv2d, nn.BatchNorm2d)
    watching = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    _, calls = probe(model, random_images(image_shape), watching)
    at = [name for name, _, _ in calls].index(layer.name)
    before = [(name, given) for name, _, given in calls[:at] if isinstance(watching[name], nn.Conv2d)]
    _, maps, given = calls[at]
    if not before or maps.shape[2:] != given.shape[2:] or layer.module.weight[0].numel() != maps.shape[1]:
        return None
    depthwise, made = before[-1]
    if made.shape != maps.shape or watching[depthwise].groups != maps.shape[1]:
        return None
    norms = [name for name, taken, _ in calls[at + 1 :] if taken.shape == given.shape and taken.equal(given)]
    norm = next((name for name in norms if isinstance(watching[name], nn.BatchNorm2d)), None)
    size = (maps.shape[2], maps.shape[3])
    return Projection(model, layer.name, depthwise, norm, size, image_shape)


def put_together(
    projection: Projection, states: tuple[State, State], vectors: Tensor, decoys: Tensor, generator: torch.Generator
) -> tuple[Tensor, Arranged] | str:
    """Return (the maps (N', C, h, w) of those of N images of which all places are told, how all were arranged), or say
    why there are none. states: sent and returned. vectors: (N·P, C), all that the projection was fed in one step, their
    lengths unknown where it has no bias."""
    sent, returned = (cast_state(state, torch.device("cpu"), torch.float32) for state in states)
    delta = {name: returned[name] - sent[name] for name in sent if sent[name].is_floating_point()}
    pixels = vectors.cpu().float()
    signals = torch.linalg.lstsq(pixels.T, delta[f"{projection.layer}.weight"].flatten(1).T).solution
    if f"{projection.layer}.bias" not in delta:
        long = _lengths(projection, sent, delta, signals)
        if long is None:
            return "nothing behind tells their lengths"
        pixels, signals = pixels * long[:, None], signals / long[:, None]
    places = math.prod(projection.size)
    own: list[Tensor] | None = [torch.arange(len(pixels))]
    if len(pixels) > places:
        jacobians = projection.jacobians(sent, pixels)
        if jacobians is None:
            return "their images are not told apart, as what follows is not the same at every place"
        own = groups(signals, jacobians, len(pixels) // places)
    if own is None:
        return "their images are not told apart, as two have much the same error at the outputs"
    update = delta[f"{projection.depthwise}.weight"].flatten()
    learned = projection.neighbours(sent, decoys) if update.any() else None
    if learned is None:
        return "the depthwise convolution is frozen, no ReLU alone stands behind it, or maps are too large"
    neighbours, slopes = learned
    active = pixels > CONE.zero * pixels.amax(1, keepdim=True)
    gradients = signals @ sent[f"{projection.layer}.weight"].flatten(1) * slopes * active
    of_images = torch.stack([pixels[one] for one in own])
    found = arrange(neighbours, of_images, torch.stack([gradients[one] for one in own]), update, generator)
    maps = torch.stack([one[order] for one, order in zip(of_images, found.places, strict=True)])
    return maps.mT.unflatten(2, projection.size)[found.certain], found


def _lengths(projection: Projection, sent: State, delta: State, signals: Tensor) -> Tensor | None:
    """Find the lengths of pixels by the bias of the BatchNorm behind, in inference mode."""
    if projection.norm is None or f"{projection.norm}.bias" not in delta:
        return None
    norm = projection.model.get_submodule(projection.norm)
    assert isinstance(norm, nn.BatchNorm2d)
    scale = sent[f"{projection.norm}.weight"] / (sent[f"{projection.norm}.running_var"] + norm.eps).sqrt()
    return lengths(scale * delta[f"{projection.norm}.bias"], signals)


def _slopes(given: Tensor, maps: Tensor) -> Tensor | None:
    """Find slopes (C,), so that each entry of maps (C, S) is 0 or a line in `given` (C, S) of that slope; else None."""
    active = (maps > 0).to(given)
    number = active.sum(1, keepdim=True).clamp_min(1)
    centred = (given - (active * given).sum(1, keepdim=True) / number) * active
    above = (maps - (active * maps).sum(1, keepdim=True) / number) * active
    slopes = (centred * above).sum(1) / centred.square().sum(1).clamp_min(torch.finfo(given.dtype).tiny)
    left = (above - slopes[:, None] * centred).norm() / above.norm()
    return slopes if left < PLACES.line else None
