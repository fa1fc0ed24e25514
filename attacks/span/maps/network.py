"""Pairs of convolutions that give away feature maps: one update holds the first one's input, the other tests it.

Both are found by running a network of any class and watching what its convolutions are fed. A pair can be used where
everything between the two depends on the first one's input alone (normalization, activation, pooling), not on a
shortcut around it, and something is nonlinear, as a ReLU: an affine path takes mixtures of maps to mixtures of what the
second one saw.

**Statistics** (`read_statistics`) with which BatchNorm normalized a client's batches come from the running ones that it
returned. In training mode BatchNorm normalizes by the mean and the variance of the batch and moves its running
statistics, r ← (1 − m) r + m b, b the batch's mean and unbiased variance. After T steps

    (r_T − (1 − m)^T r_0) / (1 − (1 − m)^T)

is a mean of the statistics of all T batches (`num_batches_tracked`), the last ones weighing most; after one step it is
that batch's. In evaluation mode with them, the network makes of an image what it made of it during training.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.interface.observation import State
from attacks.networks.probing import as_fed, evaluating, probe, random_images, run_network, watched

PROBES = 3  # maps fed in place of one image's: their number shows where they go


class _Reached(Exception):
    """The network was run as far as it had to be."""


@dataclass(frozen=True)
class MapNetwork:
    """A pair of consecutive convolutions of a network.

    first, second: their names.
    chain: names of the modules from the first up to the second, if running them in order, and a ReLU where `rectified`,
        is all that lies between; else empty.
    shape: (C, H, W) of the maps fed to `first`.
    positions, tested_positions: P, the number of patches that each of the two sees of an image.
    image_shape: (C, H, W) of the network's input.
    nonnegative: whether no entry of random images' maps is negative, as behind a ReLU.
    """

    model: nn.Module
    first: str
    second: str
    shape: tuple[int, int, int]
    positions: int
    tested_positions: int
    image_shape: tuple[int, int, int]
    nonnegative: bool
    chain: tuple[str, ...] = ()
    rectified: bool = False

    def convolution(self, name: str) -> nn.Conv2d:
        """One of the two convolutions."""
        module = self.model.get_submodule(name)
        assert isinstance(module, nn.Conv2d)
        return module

    def maps(self, state: State, images: Tensor) -> Tensor:
        """The maps (M, C, H, W) that the first convolution is fed for images, at the parameters `state`."""
        return _run(self.model, state, images, self.first)

    def between(self, state: State, maps: Tensor) -> Tensor:
        """What the second convolution is fed, (M, C', H', W'), where the first one is fed `maps` (M, C, H, W).

        Without a chain an image of zeros is run up to the first convolution, where the maps replace it.
        """
        if self.chain:
            for name in self.chain:
                own = {key.removeprefix(f"{name}."): state[key] for key in state if key.startswith(f"{name}.")}
                maps = torch.func.functional_call(self.model.get_submodule(name), own, (maps,))
            return maps.relu() if self.rectified else maps
        image = maps.new_zeros(1, *self.image_shape)
        with feeding(self.model.get_submodule(self.first), maps):
            return _run(self.model, state, image, self.second)

    def cost(self) -> float:
        """Multiply-adds of the convolutions that lie between an image and its maps."""
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


def find_map_networks(model: nn.Module, image_shape: tuple[int, int, int]) -> tuple[MapNetwork, ...]:
    """The pairs of convolutions that tell the maps of at least one image, in the order of their use."""
    found: list[MapNetwork] = []
    image = random_images(image_shape, 1).to(next(model.parameters()))
    with evaluating(model), torch.no_grad():
        calls = _calls(model, image)
        for name, (fed, given) in calls.items():
            maps, positions = tuple(fed.shape[1:]), given.shape[2] * given.shape[3]
            nonnegative = bool((fed >= 0).all())
            pair = MapNetwork(model, name, "", (maps[0], maps[1], maps[2]), positions, 0, image_shape, nonnegative)
            if _is_plain(pair.convolution(name)) and pair.most_images > 0:
                found += _behind(pair, image, calls)
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
    """The ungrouped convolutions that are fed what a ReLU lets through and have fewer positions than `most_rank`, in
    the order of their use."""
    image, found = random_images(image_shape, 1).to(next(model.parameters())), list[VectorLayer]()
    for name, (fed, given) in _calls(model, image).items():
        module, positions = model.get_submodule(name), given.shape[2] * given.shape[3]
        assert isinstance(module, nn.Conv2d)
        most = min(module.out_channels, module.weight[0].numel())
        if module.groups == 1 and positions < most and bool((fed >= 0).all()) and bool((fed == 0).any()):
            found.append(VectorLayer(name, module, positions, most))
    return tuple(found)


def _is_plain(layer: nn.Conv2d) -> bool:
    """Whether padding is zeros, of a numeric width."""
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _calls(model: nn.Module, image: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """(input, output) of every convolution that is used once, by name, in the order of use."""
    seen: list[tuple[str, Tensor, Tensor]] = []
    convolutions = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    probe(model, image, convolutions, lambda *call: seen.append(call))
    names = [name for name, _, _ in seen]
    return {name: (fed, given) for name, fed, given in seen if names.count(name) == 1 and fed.dim() == 4}


def _behind(pair: MapNetwork, image: Tensor, calls: dict[str, tuple[Tensor, Tensor]]) -> list[MapNetwork]:
    """The pair with the next convolution that depends on the first one's input, and on nothing else of the image."""
    maps = random_images(pair.shape, PROBES).to(image)
    maps = maps.relu() if pair.nonnegative else maps
    names = tuple(calls)
    later = names[names.index(pair.first) + 1 :]
    ways = []
    for other in (image, image.flip(3) + 1):
        with feeding(pair.model.get_submodule(pair.first), maps):
            ways.append(_way(pair.model, other, later, PROBES))
    one, two = ways
    if one is None or two is None or one[0] != two[0] or not torch.allclose(one[1], two[1], atol=1e-5):
        return []
    (*between, second), fed = one
    layer = pair.convolution(second)
    first = pair.convolution(pair.first)
    if not _is_plain(layer) or (layer.groups > 1 and first.groups > 1):
        return []  # with groups in both, channels of several images pass as one image's
    if first.weight[0, 0].numel() == layer.weight[0, 0].numel() == 1:
        return []  # each place is tested by itself: pixels in any order, and of several images, pass as a map
    found = replace(pair, second=second, tested_positions=calls[second][1][0, 0].numel())
    state = {**dict(pair.model.named_parameters()), **dict(pair.model.named_buffers())}
    there, back, nowhere = (found.between(state, sign * maps) for sign in (1, -1, 0))
    if torch.allclose(there + back, 2 * nowhere, atol=1e-5):
        return []  # it is affine between them: mixtures of maps would pass, too
    for rectified in (True, False):
        simple = replace(found, chain=tuple(between), rectified=rectified)
        try:
            if torch.allclose(simple.between(state, maps), fed, atol=1e-5):
                return [simple]
        except RuntimeError:  # shapes change on the way between modules
            break
    return [found]


def _way(model: nn.Module, image: Tensor, names: tuple[str, ...], count: int) -> tuple[tuple[str, ...], Tensor] | None:
    """(the modules without parts that are fed so many maps at once, up to the first of the convolutions `names`, what
    that one is fed); None where none is."""
    seen: list[str] = []
    last: list[Tensor] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if len(inputs[0]) == count:
                seen.append(name)
                if name in names:
                    last.append(inputs[0].clone())
                    raise _Reached

        return hook

    leaves = {name: module for name, module in model.named_modules() if not list(module.children())}
    # RuntimeError: the maps do not fit what they meet on a way around the convolution
    with watched(leaves, watch, before=True), suppress(_Reached, RuntimeError):
        model(as_fed(image))
    return (tuple(seen), last[0]) if last else None


def feeding(layer: nn.Module, maps: Tensor) -> AbstractContextManager[None]:
    """Within it the layer is fed `maps`, whatever reaches it."""
    return watched({"": layer}, lambda name: lambda module, inputs: (maps, *inputs[1:]), before=True)


def _run(model: nn.Module, state: State, images: Tensor, until: str) -> Tensor:
    """What the layer called `until` is fed; nothing behind it is run."""
    seen: list[Tensor] = []

    def stop(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])
        raise _Reached

    with watched({until: model.get_submodule(until)}, lambda name: stop, before=True), suppress(_Reached):
        run_network(model, state, images)
    return seen[0]


@dataclass(frozen=True)
class BatchStatistics:
    """The mean statistics of the batches, computed from the running ones before and after training.

    state: parameters and buffers as they were sent, with these means in place of the running statistics; variances are
        unbiased.
    layers: names of the BatchNorm layers.
    """

    state: State
    layers: tuple[str, ...]

    def at(self, model: nn.Module, image_shape: tuple[int, int, int], batch: int) -> State:
        """Return the state with biased variances, by which BatchNorm normalizes a batch of so many images."""
        biased: State = {}

        def visit(name: str, given: Tensor, output: Tensor) -> None:
            key, averaged = f"{name}.running_var", batch * given[0, 0].numel()
            biased[key] = self.state[key] * (1 - 1 / max(2, averaged))

        probe(model, torch.zeros(1, *image_shape), {name: model.get_submodule(name) for name in self.layers}, visit)
        return {**self.state, **biased}


def read_statistics(model: nn.Module, initial: State, final: State) -> BatchStatistics | None:
    """Compute the batches' statistics. None if no running one moved: there is none, or it was withheld or frozen."""
    moved = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and module.track_running_stats
        and not torch.equal(initial[f"{name}.running_mean"], final[f"{name}.running_mean"])
    }
    if not moved:
        return None
    state = dict(initial)
    for name, module in moved.items():
        before, after = _batches(name, initial, final)
        # without a momentum, running statistics are the plain mean over all batches ever seen
        left = before / after if module.momentum is None else (1 - module.momentum) ** (after - before)
        for key in (f"{name}.running_mean", f"{name}.running_var"):
            averaged = (final[key].double() - left * initial[key].double()) / (1 - left)
            state[key] = averaged.to(initial[key])
    return BatchStatistics(state, tuple(moved))


def _batches(layer: str, initial: State, final: State) -> tuple[int, int]:
    """How many batches a layer had seen before and after training; 0 and 1 if it did not return that."""
    counted = f"{layer}.num_batches_tracked"
    if counted not in initial or counted not in final:
        return 0, 1
    before = int(initial[counted])
    return before, max(before + 1, int(final[counted]))
