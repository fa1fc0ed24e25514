"""The search for feature maps against the machine's matrix products, and how its cost grows.

Its two inner loops are one step of the Chebyshev filter (all filtered vectors through G) and one step of the search (ρ
and its gradient at all starts). Both are measured at a late block of ResNet-18, on rows that nobody trained: what they
cost does not depend on them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from attacks.span.maps.network import MapNetwork
from attacks.span.maps.patches import PatchSpan
from attacks.span.maps.search import rho
from attacks.span.maps.update import MapUpdate
from attacks.span.thresholds import MAP_KERNEL, MAP_SEARCH
from tests.benchmarks.timing import four_products, product_work, timed


@dataclass(frozen=True)
class Block:
    """The first block of ResNet-18's last stage. images: N. channels: of its input, half of its output. side: of its
    input: 8 for images of 32 pixels with a 3x3 stem, side / 16 with the published one."""

    images: int = 8
    channels: int = 256
    side: int = 8

    @property
    def positions(self) -> int:
        return (self.side // 2) ** 2

    def update(self) -> MapUpdate:
        """What an update of one step would show, with random rows."""
        torch.manual_seed(0)
        outputs = 2 * self.channels
        layers = [nn.Conv2d(self.channels, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)).eval()
        shape = (self.channels, self.side, self.side)
        network = MapNetwork(model, "0", "3", shape, self.positions, self.positions, shape, True)
        rank, state = self.images * self.positions, dict(model.state_dict())
        sizes = (self.side, self.side), (self.side // 2, self.side // 2)
        spans = [self._span(network.convolution(name), rank, size) for name, size in zip("03", sizes, strict=True)]
        return MapUpdate(
            network=network,
            sent=state,
            returned=state,
            seen=state,
            holds=spans[0],
            tests=spans[1],
            count=self.images,
            batch=None,
            ranks=(rank, rank),
            training_mode=False,
            left=0.0,
        )

    def _span(self, layer: nn.Conv2d, rank: int, size: tuple[int, int]) -> PatchSpan:
        rows = torch.linalg.qr(torch.randn(layer.weight[0].numel(), rank))[0].T
        return PatchSpan.of(layer, rows[None].contiguous(), size)


SHARES = [Block(4, 64), Block(4), Block(8), Block(8, side=14)]
GROWTH: dict[str, list[Block]] = {
    "images": [Block(n) for n in (2, 4, 8, 16)],
    "channels": [Block(4, channels) for channels in (64, 128, 256)],
    "side": [Block(4, 128, side) for side in (4, 6, 8, 10)],
}


def filter_step(update: MapUpdate) -> tuple[Callable[[], object], float]:
    """One product of G with the vectors that are filtered, and the multiplications and additions that it cannot do
    without: with every filter at every position, there and back."""
    shape, rank = update.network.shape, update.ranks[0]
    vectors = torch.randn(int(MAP_KERNEL.directions * rank) + 1, *shape)
    work = 4 * len(vectors) * rank * shape[0] * float(update.holds.multiplicity.sum())
    return lambda: update.holds.outside(vectors), work


def search_step(update: MapUpdate) -> tuple[Callable[[], object], float]:
    """ρ and its gradient at all starts, and the work of it: from coordinates to maps, through the first convolution, to
    the second one's rows, and back."""
    size, (rank, tested) = math.prod(update.network.shape), update.ranks
    basis = torch.linalg.qr(torch.randn(size, rank))[0].T.contiguous()
    points = torch.randn(MAP_SEARCH.starts, rank).requires_grad_()
    taps = [float(span.multiplicity.sum()) for span in (update.holds, update.tests)]
    outputs = update.network.convolution("0").out_channels
    maps = rank * size + outputs * update.network.shape[0] * taps[0] + tested * outputs * taps[1]
    work = 4 * MAP_SEARCH.starts * maps
    return lambda: torch.autograd.grad(rho(update, points @ basis).sum(), points), work


def measured(blocks: Sequence[Block], device: torch.device) -> list[tuple[float, float, float, float, float]]:
    """For each block seconds and work of both steps, and the seconds of the products beside them."""
    rows = []
    for block in blocks:
        with device:  # where tensors are made
            update = block.update()
            (filtered, filter_work), (searched, search_work) = filter_step(update), search_step(update)
        first, second, products = timed([filtered, searched, four_products(device)], device, turns=3, runs=2)
        rows.append((first, filter_work, second, search_work, products))
    return rows


def print_shares(device: torch.device) -> None:
    """Both steps beside the ceiling, in turns."""
    print("Maps: one step of the kernel's filter, and one of the search (ρ and its gradient at all starts)")
    print("  N  channels  side      filter   share      search   share     ceiling")
    for block, (first, work, second, searched, products) in zip(SHARES, measured(SHARES, device), strict=True):
        ceiling = 4 * product_work() / products
        print(
            f"{block.images:3} {block.channels:9} {block.side:5} {first * 1e3:8.1f} ms {work / first / ceiling:7.0%}"
            f" {second * 1e3:8.1f} ms {searched / second / ceiling:7.0%} {ceiling / 1e9:6.0f} GF/s"
        )
    print()


def print_growth(device: torch.device) -> None:
    """Exponents of time, and of the work, in one size with the others held fixed."""
    print("Growth of both: time ~ size^p, fitted; in parentheses the exponent of the work that is counted")
    for name, blocks in GROWTH.items():
        sizes = [getattr(block, name) for block in blocks]
        columns = list(zip(*measured(blocks, device), strict=True))
        seconds = [np.divide(columns[i], columns[4]) for i in (0, 2)]  # in products, which go up and down with the load
        powers = [exponent(sizes, column) for column in (seconds[0], columns[1], seconds[1], columns[3])]
        values = " ".join(map(str, sizes))
        print(
            f"{name:9} {values:14} filter {powers[0]:.1f} ({powers[1]:.1f})   search {powers[2]:.1f} ({powers[3]:.1f})"
        )
    print()


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The slope of log value over log size."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
