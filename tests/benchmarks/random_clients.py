"""Clients of random networks, learning rates, steps and noise, and what `span` returns of them that is nobody's.

`python -m tests.benchmarks.random_clients --root DATA --first 2000 --clients 200` prints a row for each activation of
MLPs; `--kind convolutions` one for convolutional networks with more features than pixels, whose attacker is told the
number of images. Half of the clients have images of one class. A stray is a returned image with no private one within
20 dB. `--each` lists the clients with strays. Odd ones: `tests.benchmarks.odd_clients`.
"""

import argparse
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from skimage.data import lfw_subset
from torch import Tensor, nn

from attacks import Knowledge, Observation, get_attack
from attacks.interface.errors import InputError
from attacks.networks.probing import linear_layers
from attacks.span.feature_space.network import find_feature_network
from tests.benchmarks.zoo import cifar10, mnist

ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU)
NOISE = (0.0, 0.0, 0.0, 1e-4, 1e-3, 1e-2, 0.05)  # relative to the update of each tensor; float32 rounds besides
MOST_FEATURES = 25_000
Images = tuple[Tensor, Tensor]


def data_sets(root: Path) -> list[Images]:
    """(images (N, C, H, W) less a mean, classes (N,)) of CIFAR-10, MNIST and faces with other crops beside them."""
    faces = torch.tensor(lfw_subset(), dtype=torch.float32)[:, None]
    return [cifar10(root), mnist(root), (faces - faces.mean(), torch.arange(200) // 100)]


def mlp(draw: random.Random, images: Tensor) -> tuple[str, nn.Module]:
    kind, width, second = draw.choice(ACTIVATIONS), draw.choice((64, 128, 256, 512)), draw.choice((64, 128, 256))
    layers = (nn.Linear(images[0].numel(), width), kind(), nn.Linear(width, second), kind(), nn.Linear(second, 10))
    return kind.__name__, nn.Sequential(nn.Flatten(), *layers)


def convolutions(draw: random.Random, images: Tensor) -> tuple[str, nn.Module]:
    """One to three convolutions, normalized, pooled or with a residual block behind them by chance, and a head."""
    kind, channels = draw.choice((nn.ReLU, nn.GELU, nn.SiLU)), images.shape[1]
    layers: list[nn.Module] = []
    for i in range(draw.choice((1, 2, 3))):
        width, size = draw.choice((8, 16, 32)), draw.choice((3, 5))
        padding = size // 2 if i else draw.choice((0, size // 2))
        layers.append(nn.Conv2d(channels, width, size, draw.choice((1, 1, 2)), padding))
        layers += [*draw.choice(([], [], [nn.BatchNorm2d(width)], [nn.GroupNorm(4, width)])), kind()]
        layers += draw.choice(([], [], [], [nn.MaxPool2d(2, ceil_mode=True)], [nn.AvgPool2d(2, ceil_mode=True)]))
        channels = width
    layers.append(nn.Flatten())
    features = nn.Sequential(*layers).eval()(images[:1]).shape[1]
    for width in draw.choice(((), (120,), (84,), (256, 84))):
        layers += [nn.Linear(features, width), kind()]
        features = width
    return "convolutions", nn.Sequential(*layers, nn.Linear(features, 10))


def determined(model: nn.Module, images: Tensor) -> bool:
    """Whether the head of a network is fed no fewer numbers than images have pixels, and not too many for a test."""
    network = find_feature_network(model, tuple(images.shape[1:]))
    features = linear_layers(model)[network.layers[0]].in_features if network else 0
    return images[0].numel() <= features <= MOST_FEATURES


def trained(draw: random.Random, model: nn.Module, images: Tensor, labels: Tensor) -> Observation:
    """What a server sees of one to five epochs of SGD, with or without momentum, in one batch or several, and noise."""
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    low = -6 if isinstance(model[0], nn.Flatten) else -3
    optimizer = torch.optim.SGD(model.parameters(), 10 ** draw.uniform(low, -1), draw.choice((0.0, 0.9)))
    batch = draw.choice((len(images), len(images), 2))
    for _ in range(draw.choice((1, 1, 2, 5))):
        for part in torch.randperm(len(images)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
    noise, returned = draw.choice(NOISE), {}
    for name, value in model.state_dict().items():
        change = value - sent[name]
        if value.is_floating_point():
            change += noise * change.norm() / math.sqrt(max(1, change.numel())) * torch.randn_like(change)
        returned[name] = sent[name] + change
    model.load_state_dict(sent)
    return Observation(model, ((sent, returned),), tuple(images.shape[1:]))


def counted(seed: int, sets: list[Images], build: Callable) -> tuple[str, Counter] | None:
    """(kind of client, what came back of it); None for a network that is not asked about."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    images, labels = draw.choice(sets)
    number, label = draw.choice((2, 2, 3, 4, 8, 16)), draw.randrange(int(labels.max()) + 1)
    pool = (labels == label).nonzero()[:, 0] if draw.random() < 0.5 else torch.arange(len(labels))
    chosen = pool[torch.randperm(len(pool))[:number]]
    private, (kind, model) = images[chosen], build(draw, images)
    if build is convolutions and not determined(model, images):
        return None
    observation, told = trained(draw, model, private, labels[chosen]), build is convolutions or draw.random() < 0.4
    knowledge = Knowledge(num_private=number if told else None)
    row = Counter(clients=1, private=number)
    try:
        found = get_attack("span").run(observation, knowledge, torch.Generator().manual_seed(seed))
    except InputError:
        return kind, row + Counter(refused=1)
    returned, held = (within(part, private) for part in (found.images, found.held))
    row += Counter(returned=len(returned), recovered=sum(returned), strays=len(returned) - sum(returned))
    return kind, row + Counter(held=sum(held), clients_with_strays=not all(returned))


def within(found: Tensor | None, private: Tensor) -> list[bool]:
    """Which candidates have a private image within 20 dB."""
    if found is None or not len(found):
        return []
    return (torch.cdist(found.flatten(1), private.flatten(1)).amin(1) <= 0.1 * private[0].numel() ** 0.5).tolist()


def arguments(doc: str | None, kinds: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--kind", choices=(own := tuple(kinds)), default=own[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--each", action="store_true")
    return parser.parse_args()


def print_table(clients: Iterable[tuple[str, Counter]], names: tuple[str, ...]) -> None:
    """Print a row of sums for each kind of client."""
    rows: dict[str, Counter] = defaultdict(Counter)
    for kind, row in clients:
        rows[kind] += row
    print("| network |", " | ".join(names), "|")
    print("|---" * (1 + len(names)) + "|")
    for kind, row in sorted(rows.items()):
        print("|", " | ".join([kind, *(str(row[name]) for name in names)]), "|")


def main() -> None:
    torch.set_num_threads(1)
    builds = {"mlp": mlp, "convolutions": convolutions}
    given = arguments(__doc__, builds)
    sets = data_sets(given.root)

    def clients() -> Iterator[tuple[str, Counter]]:
        for seed in range(given.first, given.first + given.clients):
            found = counted(seed, sets, builds[given.kind])
            if found is not None:
                if given.each and found[1]["strays"]:
                    print(f"seed {seed}: {dict(found[1])}", flush=True)
                yield found

    print_table(clients(), ("clients", "refused", "private", "returned", "strays", "clients_with_strays", "held"))


if __name__ == "__main__":
    main()
