"""False positives of the span attack: images it returns that no client held, and outsiders that look like members.

`python -m tests.benchmarks.strays --root DATA --clients 100`, DATA with a folder for each data set, prints a line of
CSV for each kind of client. Bounds are exact (Clopper and Pearson, 95 %, one-sided).
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from scipy.stats import binomtest
from torch import Tensor

from attacks import get_attack
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import State
from attacks.interface.torch_tools import derive_seed, torch_generator
from attacks.membership import MembershipTest
from tests.benchmarks.held_out import (
    CLASSES,
    DATA,
    Client,
    Kind,
    Tally,
    draw_images,
    make_client,
    mlp,
    observe,
    pixel_mean,
)

OUTSIDERS = 50  # held-out images beside each client, that a membership test has to tell from its own
NOISE = 0.01  # standard deviation of what is drawn in place of an update


@dataclass(frozen=True)
class Source:
    """Where clients come from. root: the folder of all data sets. sizes: (smallest, largest) number of images.
    mean_told: whether the adversary knows the mean that clients subtract, as it does in scenarios by default."""

    data: str
    root: Path
    sizes: tuple[int, int] = (4, 10)
    width: int = 128
    mean_told: bool = False

    def told(self, knowledge: Knowledge) -> Knowledge:
        """What the adversary knows here."""
        return replace(knowledge, pixel_mean=pixel_mean(self.data, self.root)) if self.mean_told else knowledge

    def kind(self, seed: int, activation: str = "relu") -> Kind:
        """An undefended SGD client of two hidden layers."""
        smallest, largest = self.sizes
        images = smallest + derive_seed(seed, "size") % (largest - smallest + 1)
        return Kind("undefended", images, mlp(self.width, activation=activation))

    def images(self, seed: int, count: int) -> tuple[Tensor, Tensor]:
        return draw_images(self.data, self.root, count, seed)

    def client(self, kind: Kind, seed: int, others: int = 0) -> Client:
        return make_client(kind, self.data, self.root, seed, others)


def undefended(source: Source, seed: int) -> Client:
    return source.client(source.kind(seed), seed, OUTSIDERS)


def tanh(source: Source, seed: int) -> Client:
    """No dual has zeros: ρ alone decides."""
    return source.client(source.kind(seed, "tanh"), seed, OUTSIDERS)


def gelu(source: Source, seed: int) -> Client:
    return source.client(source.kind(seed, "gelu"), seed, OUTSIDERS)


def random_labels(source: Source, seed: int) -> Client:
    """Images under labels drawn at random."""
    kind, generator = source.kind(seed), torch_generator(seed, "labels")
    images, _ = source.images(seed, kind.images)
    labels = torch.randint(CLASSES, (len(images),), generator=generator)
    return Client(observe(kind, images, labels, seed), images, images[:0])


def white_noise(source: Source, seed: int) -> Client:
    """A client whose images are noise, as bright and as varied as images are."""
    kind, generator = source.kind(seed), torch_generator(seed, "white noise")
    images, labels = source.images(seed, kind.images)
    noise = images.mean() + images.std() * torch.randn(images.shape, generator=generator)
    return Client(observe(kind, noise, labels, seed), noise, images)


def swapped(source: Source, seed: int, activation: str = "relu") -> Client:
    """The first layer's update of one client with the rest of another's, from the same checkpoint. What the first one
    held is no stray: the sparsity test needs the first layer alone."""
    kind = source.kind(seed, activation)
    images, labels = source.images(seed, 2 * kind.images)
    one, other = (observe(kind, images[half], labels[half], seed) for half in torch.arange(len(images)).chunk(2))
    first = [name for name in other.trainable if one.final[name].shape[0] == source.width][:2]
    mixed = other.final | {name: one.final[name] for name in first}
    return Client(replace(one, pairs=((one.initial, mixed),)), images, images[:0])


def swapped_tanh(source: Source, seed: int) -> Client:
    """The same without zeros: ρ decides, so what the first client held is wrong as well."""
    client = swapped(source, seed, "tanh")
    return replace(client, private=client.private[:0])


def low_rank(source: Source, seed: int) -> Client:
    """No client: updates drawn at random, of as many directions as images leave."""
    kind, generator = source.kind(seed), torch_generator(seed, "low rank")

    def draw(shape: torch.Size, layer: int) -> Tensor:
        rank = min(kind.images if layer == 0 else 4 * kind.images, *shape)
        return torch.randn(shape[0], rank, generator=generator) @ torch.randn(rank, shape[1], generator=generator)

    return _without_client(source, seed, draw)


def noise(source: Source, seed: int) -> Client:
    """No client: an update of Gaussian noise."""
    generator = torch_generator(seed, "noise")
    return _without_client(source, seed, lambda shape, layer: torch.randn(shape, generator=generator))


def _without_client(source: Source, seed: int, draw: Callable[[torch.Size, int], Tensor]) -> Client:
    """A network at its initial parameters, and an update of [W | b] (out, in + 1) of each layer that was drawn."""
    images, labels = source.images(seed, 1)
    idle = observe(source.kind(seed), images, labels, seed)
    returned: State = {}
    for layer, name in enumerate(name for name in idle.initial if name.endswith("weight")):
        weight, bias = idle.initial[name], name.removesuffix("weight") + "bias"
        update = NOISE * draw(torch.Size([weight.shape[0], weight.shape[1] + 1]), layer)
        returned |= {name: weight + update[:, :-1], bias: idle.initial[bias] + update[:, -1]}
    return Client(replace(idle, pairs=((idle.initial, returned),)), images[:0], images[:0])


KINDS: dict[str, tuple[Callable[[Source, int], Client], Knowledge]] = {
    "undefended": (undefended, Knowledge()),
    "undefended, tanh": (tanh, Knowledge()),
    "undefended, GELU": (gelu, Knowledge()),
    "random labels": (random_labels, Knowledge()),
    "images of white noise": (white_noise, Knowledge()),
    "another's second layer": (swapped, Knowledge()),
    "another's second layer, tanh": (swapped_tanh, Knowledge()),
    "random updates of low rank": (low_rank, Knowledge()),
    "noise": (noise, Knowledge()),
    "noise, told": (noise, Knowledge(noise_std=NOISE)),
}


def bound(events: int, trials: int) -> float:
    """The highest rate that so many events leave possible, at 95 %."""
    return float(binomtest(events, trials, alternative="less").proportion_ci(0.95, "exact").high)


@dataclass
class Count:
    """Of so many clients: what came back; how many had a stray; outsiders at least as sure as the client's least sure
    image, of so many outsiders."""

    clients: int = 0
    images: Tally = field(default_factory=Tally)
    returned: int = 0
    with_strays: int = 0
    mistaken: int = 0
    outsiders: int = 0

    def add(self, client: Client, told: Knowledge, seed: int) -> None:
        found = get_attack("span").run(client.observation, told, torch_generator(seed, "attack")).images
        tally = Tally.of(client.private, found)
        self.clients, self.images, self.returned = self.clients + 1, self.images + tally, self.returned + len(found)
        self.with_strays += tally.strays > 0
        if len(client.others):
            test = MembershipTest.of(client.observation, told)
            self.mistaken += int((test.residual(client.others) <= test.residual(client.private).max()).sum())
            self.outsiders += len(client.others)

    def columns(self) -> dict[str, object]:
        images, outsiders = self.images, self.outsiders
        return {
            "clients": self.clients,
            "private": images.private,
            "exact": images.exact,
            "recovered": images.recovered,
            "returned": self.returned,
            "strays": images.strays,
            "strays_per_1000_clients": f"{1e3 * images.strays / self.clients:.3g}",
            "clients_with_strays": self.with_strays,
            "at_most_per_1000": f"{1e3 * bound(self.with_strays, self.clients):.3g}",
            "outsiders": outsiders or "",
            "taken_for_members": self.mistaken if outsiders else "",
            "at_most_per_1000_outsiders": f"{1e3 * bound(self.mistaken, outsiders):.2g}" if outsiders else "",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first client")
    parser.add_argument("--images", type=int, nargs=2, default=(4, 10), help="smallest and largest number")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--mean-told", action="store_true", help="as scenarios grant by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(",".join(("kind", "data", *Count(1).columns())))
    for data in options.data:
        source = Source(data, options.root, tuple(options.images), options.width, options.mean_told)
        for label in options.kinds:
            print_line(label, source, range(options.first, options.first + options.clients))


def print_line(label: str, source: Source, seeds: range) -> None:
    """A line of CSV of the clients of these seeds."""
    make, told = KINDS[label]
    count = Count()
    for seed in seeds:
        count.add(make(source, seed), source.told(told), seed)
    print(f'"{label}",{source.data},' + ",".join(map(str, count.columns().values())), flush=True)


if __name__ == "__main__":
    main()
