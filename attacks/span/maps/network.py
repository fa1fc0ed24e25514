"""Pairs of layers that give away feature maps: a convolution's update holds its input, that of a later layer tests it.

Both are found by running a network of any class and watching what its layers are fed. The later one is a convolution,
or a linear layer that every position passes through. Between the two may lie anything that depends on the first one's
input alone, and on no shortcut around it: normalization, activation, pooling, depthwise convolutions, whole blocks.
Something has to be nonlinear beyond a scale, as a ReLU is: else mixtures of maps become mixtures of what the second
layer saw, and pass.

**Statistics** (`batch_statistics`) with which BatchNorm normalized a client's batches come from the running ones it
returned (`with_batch_statistics`). In evaluation mode with them, the network makes of an image what it made of it
during training.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.interface.observation import State
from attacks.networks.probing import (
    as_fed,
    evaluating,
    norms_of_batches,
    probe,
    random_images,
    run_network,
    watched,
    with_batch_statistics,
)
from attacks.span.maps.patches import geometry

PROBES = 3  # maps fed in place of one image's: their number shows where they go
NONLINEAR = 1e-4  # share of a mixture's image that lies in no mixture of its parts' images, from which a pair tells


class _Reached(Exception):
    """The network was run as far as it had to be."""


@dataclass(frozen=True)
class MapNetwork:
    """A convolution of a network, and a later layer, of convolution or linear, that tests what the first was fed.

    first, second: their names.
    shape: (C, H, W) of the maps fed to `first`.
    positions, tested_positions: P, the number of patches that each of the two sees of an image.
    image_shape: (C, H, W) of the network's input.
    nonnegative: whether no entry of random images' maps is negative, as behind a ReLU.
    batched: whether the network is run on as many images as maps, as it has to be where it counts the images.
    """

    model: nn.Module
    first: str
    second: str
    shape: tuple[int, int, int]
    positions: int
    tested_positions: int
    image_shape: tuple[int, int, int]
    nonnegative: bool
    batched: bool = False

    def convolution(self, name: str) -> nn.Conv2d:
        """Return one of the two layers; a linear one as the 1x1 convolution that it is, without its values."""
        module = self.model.get_submodule(name)
        if isinstance(module, nn.Linear):
            return nn.Conv2d(module.in_features, module.out_features, 1, device="meta")
        assert isinstance(module, nn.Conv2d)
        return module

    def maps(self, state: State, images: Tensor) -> Tensor:
        """Return the maps (M, C, H, W) that the first convolution is fed for images, at the parameters `state`."""
        return _run(self.model, state, images, self.first)

    def between(self, state: State, maps: Tensor) -> Tensor:
        """Compute what the second layer is fed, (M, C', H', W'), where the first one is fed `maps` (M, C, H, W): images
        of zeros are run up to the first convolution, where the maps replace them."""
        image = maps.new_zeros(len(maps) if self.batched else 1, *self.image_shape)
        with feeding(self.model.get_submodule(self.first), maps):
            return _run(self.model, state, image, self.second)

    def left_by_mixtures(self, state: State, one: Tensor, other: Tensor) -> Tensor:
        """Compute, of the mean of two maps (M, C, H, W) each and of a mosaic of both, the lesser share (M,) of what the
        second layer is fed that lies, at its position, in no mixture of what it is fed for the two and for zeros.

        0 where all between is affine, up to a scale of every position, or where every position is by itself: there
        mixtures, or mosaics, of private maps pass as private ones.
        """
        parts = [self.between(state, maps).flatten(2).mT.double() for maps in (one, other, torch.zeros_like(one))]
        basis = torch.linalg.qr(torch.stack(parts, 3))[0]
        left = []
        for maps in ((one + other) / 2, torch.where(self._checkered(one.device), one, other)):
            fed = self.between(state, maps).flatten(2).mT.double()[..., None]
            left.append((fed - basis @ (basis.mT @ fed)).square().flatten(1).sum(1) / fed.square().flatten(1).sum(1))
        return torch.minimum(*left)

    def _checkered(self, device: torch.device) -> Tensor:
        """Return a mask (H, W) of every other one of the squares that the first convolution moves by."""
        rows, columns = (
            torch.arange(side, device=device) // step
            for side, step in zip(self.shape[1:], geometry(self.convolution(self.first))[3], strict=True)
        )
        return (rows[:, None] + columns) % 2 == 0

    def cost(self) -> float:
        """Count the multiply-adds of the convolutions that lie between an image and its maps."""
        image = random_images(self.image_shape, 1).to(next(self.model.parameters()))
        before = itertools.takewhile(lambda call: call[0] != self.first, _calls(self.model, image).items())
        layers = ((self.convolution(name).weight[0].numel(), given) for name, (_, given) in before)
        return float(sum(weights * given.numel() for weights, given in layers))

    @property
    def most_rank(self) -> int:
        """The rank that the first convolution's update can have, in each group of channels."""
        layer = self.convolution(self.first)
        return min(layer.out_channels // layer.groups, layer.weight[0].numel())

    @property
    def most_images(self) -> int:
        """The largest N with N·P below that rank."""
        return (self.most_rank - 1) // self.positions

    def unknowns(self, count: int) -> int:
        """Count the unknowns of a map, if the first layer saw `count` images: at most the dimensions their patches
        span."""
        return min(math.prod(self.shape), self.positions * count * self.positions)

    def spare(self, count: int) -> int:
        """Return by how many the second layer's equations for a map exceed its unknowns, if it saw `count` images."""
        return self.equations(count * self.tested_positions) - self.unknowns(count)

    def equations(self, rank: int) -> int:
        """Count the second layer's equations for a map, where its update has this rank."""
        layer = self.convolution(self.second)
        return layer.groups * self.tested_positions * (layer.weight[0].numel() - rank)


def find_map_networks(model: nn.Module, image_shape: tuple[int, int, int]) -> tuple[MapNetwork, ...]:
    """Find the pairs of layers that tell the maps of at least one image, in the order of their use."""
    found: list[MapNetwork] = []
    image = random_images(image_shape, 1).to(next(model.parameters()))
    with evaluating(model), torch.no_grad():
        calls = _calls(model, image)
        for name, (fed, given) in calls.items():
            layer, positions = model.get_submodule(name), given[0, 0].numel()
            if not isinstance(layer, nn.Conv2d) or not _is_plain(layer):
                continue
            shape, nonnegative = (fed.shape[1], fed.shape[2], fed.shape[3]), bool((fed >= 0).all())
            pair = MapNetwork(model, name, "", shape, positions, 0, image_shape, nonnegative)
            if pair.most_images > 0:
                maps = fed.square().mean().sqrt() * random_images(pair.shape, PROBES).to(image)
                found += _behind(pair, maps, image, calls) or _behind(replace(pair, batched=True), maps, image, calls)
    return tuple(found)


@dataclass(frozen=True)
class VectorLayer:
    """A convolution that is fed nonnegative maps, some of whose entries are zero.

    positions: P, the patches of a map.
    most_rank: of its update.
    """

    name: str
    module: nn.Conv2d
    positions: int
    most_rank: int


def find_vector_layers(model: nn.Module, image_shape: tuple[int, int, int]) -> tuple[VectorLayer, ...]:
    """Find the ungrouped convolutions that are fed what a ReLU lets through and have fewer positions than `most_rank`,
    in the order of their use."""
    image, found = random_images(image_shape, 1).to(next(model.parameters())), list[VectorLayer]()
    for name, (fed, given) in _calls(model, image).items():
        module, positions = model.get_submodule(name), given.shape[2] * given.shape[3]
        if not isinstance(module, nn.Conv2d):
            continue
        most = min(module.out_channels, module.weight[0].numel())
        if module.groups == 1 and positions < most and bool((fed >= 0).all()) and bool((fed == 0).any()):
            found.append(VectorLayer(name, module, positions, most))
    return tuple(found)


def _is_plain(layer: nn.Conv2d) -> bool:
    """Return whether padding is zeros, of a numeric width."""
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _as_maps(layer: nn.Module, given: Tensor) -> Tensor:
    """Return what a layer is fed or gives as (N, C, H, W): a linear one has channels last, and one row of positions."""
    if not isinstance(layer, nn.Linear):
        return given
    return given.movedim(-1, 1) if given.dim() == 4 else given.movedim(-1, 1)[..., None]


def _calls(model: nn.Module, image: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return (input, output), each (1, C, H, W), of every convolution that is used once, on one map of an image, and
    of every such linear layer that several positions pass through; by name, in the order of use."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
    _, seen = probe(model, image, layers)
    names = [name for name, fed, _ in seen for _ in fed]
    return {
        name: (_as_maps(layers[name], fed), _as_maps(layers[name], given))
        for name, fed, given in seen
        if names.count(name) == 1 and (fed.dim() == 4 or (fed.dim() == 3 and isinstance(layers[name], nn.Linear)))
    }


def _behind(pair: MapNetwork, maps: Tensor, image: Tensor, calls: dict[str, tuple[Tensor, Tensor]]) -> list[MapNetwork]:
    """Find the pairs with later layers that depend on the first one's input and on nothing else of the image, up to one
    that can test as many images as the first holds. maps: (3, C, H, W), to try them with."""
    maps = maps.relu() if pair.nonnegative else maps
    names = tuple(calls)
    later = names[names.index(pair.first) + 1 :]
    one, two = (_fed_behind(pair, maps, other, later) for other in (image, image.flip(3) + 1))
    found: list[MapNetwork] = []
    for name in one:
        if name not in two or not torch.allclose(one[name], two[name], atol=1e-5):
            break
        full = replace(pair, second=name, tested_positions=calls[name][1][0, 0].numel())
        if full.spare(1) > 0 and _tells(full, maps):
            found.append(full)
            if full.spare(full.most_images) > 0:
                break
    return found


def _tells(pair: MapNetwork, maps: Tensor) -> bool:
    """Return whether the second layer tells maps from mixtures of several, and from others of the same pixels. maps:
    (3, C, H, W), to try it with."""
    first, second = pair.convolution(pair.first), pair.convolution(pair.second)
    if not _is_plain(second) or (second.groups > 1 and first.groups > 1):
        return False  # with groups in both, channels of several images pass as one image's
    state = {**dict(pair.model.named_parameters()), **dict(pair.model.named_buffers())}
    if first.weight[0, 0].numel() == second.weight[0, 0].numel() == 1:
        exchanged, (height, width) = maps.clone(), cast(tuple[int, int], first.stride)
        row, column = (pair.shape[1] - 1) // height * height, (pair.shape[2] - 1) // width * width
        exchanged[..., 0, 0], exchanged[..., row, column] = maps[..., row, column], maps[..., 0, 0]
        before, after = (pair.between(state, some).square().sum((2, 3)) for some in (maps, exchanged))
        if pair.positions > 1 and torch.allclose(before, after, rtol=1e-4):
            return False  # pixels in any order, and of several images, pass as a map
    return float(pair.left_by_mixtures(state, maps[:1], maps[1:2])) > NONLINEAR


def _fed_behind(pair: MapNetwork, maps: Tensor, other: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return what layers are fed that are fed as many maps at once, in the order of use, as far as the network bears
    the maps (3, C, H, W) in the place of those of another image (1, C, H, W)."""
    fed: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if len(inputs[0]) == len(maps):
                fed[name] = _as_maps(module, inputs[0].clone())

        return hook

    images = other.expand(len(maps) if pair.batched else 1, -1, -1, -1)
    layers = {name: pair.model.get_submodule(name) for name in names}
    # RuntimeError: the maps do not fit what they meet on a way around the convolution
    with (
        feeding(pair.model.get_submodule(pair.first), maps),
        watched(layers, watch, before=True),
        suppress(RuntimeError),
    ):
        pair.model(as_fed(images))
    return fed


def feeding(layer: nn.Module, maps: Tensor) -> AbstractContextManager[None]:
    """Feed the layer `maps` within a context, whatever reaches it."""
    return watched({"": layer}, lambda name: lambda module, inputs: (maps, *inputs[1:]), before=True)


def _run(model: nn.Module, state: State, images: Tensor, until: str) -> Tensor:
    """Run the network up to the layer called `until`, and return what that is fed."""
    seen: list[Tensor] = []

    def stop(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].to(images.dtype))  # within `torch.autocast` layers are fed another
        raise _Reached

    layer = model.get_submodule(until)
    with watched({until: layer}, lambda name: stop, before=True), suppress(_Reached):
        run_network(model, state, images)
    return _as_maps(layer, seen[0])


def batch_statistics(
    model: nn.Module, initial: State, final: State, image_shape: tuple[int, int, int], batch: int
) -> State | None:
    """Return the parameters and buffers as they were sent, with the statistics by which BatchNorm normalized batches of
    so many images in place of the running ones: their means, and biased variances. None if no running one moved: there
    is none, or it was withheld or frozen."""
    norms = dict(model.named_modules())
    moved = {name: norms[name] for name in norms_of_batches(initial, final) if isinstance(norms[name], _BatchNorm)}
    if not moved:
        return None
    state = with_batch_statistics(model, initial, final)
    fed = {call.name: call.given for call in probe(model, torch.zeros(1, *image_shape), moved)[1]}
    for name, given in fed.items():
        key, number = f"{name}.running_var", batch * given[0, 0].numel()
        state[key] = state[key] * (1 - 1 / max(2, number))
    return state


def batches_seen(initial: State, final: State) -> int:
    """Return how many batches the network was trained on, as BatchNorm counts them; 1 where none does."""
    counters = (f"{name}.num_batches_tracked" for name in norms_of_batches(initial, final))
    return max((int(final[name] - initial[name]) for name in counters if name in final), default=1)


@contextmanager
def normalizing_batches(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm normalize by the statistics of what it is fed, within a context; running ones stay as they are."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(module.training, module.track_running_stats) for module in norms]
    for module in norms:
        module.training, module.track_running_stats = True, False
    try:
        yield
    finally:
        for module, (training, tracking) in zip(norms, before, strict=True):
            module.training, module.track_running_stats = training, tracking
