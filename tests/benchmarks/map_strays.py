"""How often the span attack accepts feature maps of updates that hold none.

    python -m tests.benchmarks.map_strays [--tries 200] [--images 4] [--weights FILE] [--training]

Updates of two consecutive convolutions of the rank that the patches of so many images have, of random rows; and right
updates of one network's images beside the maps of as many others, projected onto the kernel. The network is a small
untrained one (64 to 128 channels, 8 x 8 to 4 x 4), or a ResNet-18 at the weights of FILE. --training: as BatchNorm in
training mode leaves them, with one row less and the statistics of a batch of nobody. One thread. Prints what was
accepted, with the rate that so many tries bound at 95 %, and how far the lowest ρ stays above the bound.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from scipy.stats import beta
from torch import nn

from attacks import Observation
from attacks.span.maps.inversion import PixelSpace
from attacks.span.maps.network import find_map_networks
from attacks.span.maps.search import find_maps
from attacks.span.maps.update import MapUpdate, read_update
from attacks.span.variants.maps import map_networks_of
from tests.benchmarks.map_clients import trained_resnet

SHAPE = (3, 32, 32)


def network(widths: Sequence[int] = (3, 16, 64, 64, 128, 128), strides: Sequence[int] = (1, 2, 2, 2, 1)) -> nn.Module:
    """Convolutions, the last two of them the pair; untrained, with BatchNorm's statistics of decoys."""
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for (inputs, outputs), stride in zip(pairwise(widths), strides, strict=True):
        modules += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    model = nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)).train()
    with torch.no_grad():
        for _ in range(30):
            model(decoys(128, 0))
    return model.eval()


def decoys(count: int, seed: int) -> torch.Tensor:
    return 4 * PixelSpace(SHAPE, None).decoys(count, torch.Generator().manual_seed(seed))


def read(model: nn.Module, final: dict[str, torch.Tensor]) -> MapUpdate:
    """The evidence in the step from the network's own parameters to `final`."""
    observation = Observation(model, ((dict(model.state_dict()), final),), SHAPE)
    return read_update(observation, map_networks_of(observation))


def searched(model: nn.Module, final: dict[str, torch.Tensor], seed: int) -> tuple[int, float]:
    """(maps accepted, lowest ρ over the bound)."""
    update, generator = read(model, final), torch.Generator().manual_seed(seed)
    maps = update.network.maps(update.seen, decoys(100, 10_000 + seed))
    with torch.no_grad():
        found = find_maps(update, maps, generator, lambda *done: None)
    lowest = float(found.residual[0]) if len(found.residual) else float(found.decoys.min())
    return found.num_accepted, lowest / found.bound


def of_others(model: nn.Module, final: dict[str, torch.Tensor], seed: int) -> float:
    """The lowest ρ, over the bound, of 100 maps of images that the client does not hold, projected onto the kernel."""
    update = read(model, final)
    with torch.no_grad():
        maps = update.network.maps(update.seen, decoys(100, 20_000 + seed))
        found = find_maps(update, maps, torch.Generator().manual_seed(seed), lambda *done: None)
    return float(found.decoys.min() / found.bound)


def random_update(model: nn.Module, images: int, seed: int, training: bool = False) -> dict[str, torch.Tensor]:
    """The parameters after an update of random rows, as many as the images have patches, and with `training` one less
    and the running statistics of a batch of decoys."""
    generator = torch.Generator().manual_seed(seed)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    if training:
        with torch.no_grad():
            model.train()(decoys(images, 50_000 + seed))
    final = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval().load_state_dict(initial)
    pair = find_map_networks(model, SHAPE)[-1]
    rank = pair.positions * images - int(training)
    for name in (f"{pair.first}.weight", f"{pair.second}.weight"):
        left = torch.randn(len(final[name]), rank, generator=generator)
        right = torch.randn(rank, final[name][0].numel(), generator=generator)
        final[name] += 1e-4 * (left @ right).view_as(final[name])
    return final


def right_update(model: nn.Module, images: int, seed: int) -> dict[str, torch.Tensor]:
    """The parameters after one step on so many images."""
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    F.cross_entropy(model(decoys(images, seed)), torch.arange(images)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
    final = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(initial)
    return final


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--training", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = network() if options.weights is None else trained_resnet(options.weights)
    tried = [
        searched(model, random_update(model, options.images, seed, options.training), seed)
        for seed in range(options.tries)
    ]
    accepted, ratios = zip(*tried, strict=True)
    strays = sum(number > 0 for number in accepted)
    print(f"random rows: {sum(accepted)} maps accepted in {options.tries} updates, lowest ρ / bound {min(ratios):.2g}")
    print(
        f"updates with a stray: {strays}, at most {largest_rate(strays, options.tries):.1%} of all with 95 % confidence"
    )
    if options.training:
        return
    others = [of_others(model, right_update(model, options.images, seed), seed) for seed in range(options.tries // 10)]
    print(f"maps of others, projected: lowest ρ / bound {min(others):.2g} in {100 * len(others)}")


def largest_rate(events: int, tries: int) -> float:
    """The rate at which so few events, or fewer, have a chance of 5 % (Clopper and Pearson 1934); near 3 / tries for
    none."""
    return float(beta.ppf(0.95, events + 1, tries - events)) if events < tries else 1.0


if __name__ == "__main__":
    main()
