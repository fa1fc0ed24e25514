"""Counts of a client's classes, told from its update, on Flower's quickstart network.

`python -m tests.benchmarks.label_counts --root DATA` prints a line of CSV for each network and training: over ten
clients of CIFAR-10's lossless subset, the share of images in a wrong class, in the mean and at most, that of equal
counts, and the largest `misfit`. The classes of a client are drawn from a Dirichlet distribution with concentration
0.5. *trained* networks have seen 2,000 other images for ten epochs. *public*: whether the attacker has 1,000 of those.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks import Knowledge, Observation
from attacks.update.labels import LabelCounts, estimate_label_counts
from tests.attacks.user_networks import Quickstart
from tests.benchmarks.membership import SHAPE, lossless

CLIENTS, OTHERS, PUBLIC = 10, 2000, 1000


class Training(NamedTuple):
    """Of a client. momentum: of SGD; below 0 for Adam."""

    images: int
    epochs: int
    rate: float
    momentum: float


TRAININGS = (
    Training(500, 1, 0.01, 0.0),
    Training(500, 1, 0.01, 0.9),
    Training(500, 5, 0.01, 0.9),
    Training(40, 1, 0.01, 0.9),
    Training(500, 1, 0.001, -1.0),
)


def train(model: Quickstart, images: Tensor, labels: Tensor, how: Training, generator: torch.Generator) -> int:
    """Train in batches of 32 and return the number of steps."""
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), how.rate)
    if how.momentum >= 0:
        optimizer = torch.optim.SGD(model.parameters(), how.rate, how.momentum)
    batches = [batch for _ in range(how.epochs) for batch in torch.randperm(len(images), generator=generator).split(32)]
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    return len(batches)


def client(labels: Tensor, size: int, seed: int) -> Tensor:
    """The numbers of a client's images."""
    draw = np.random.default_rng(seed)
    wanted = draw.multinomial(size, draw.dirichlet([0.5] * 10))
    return torch.cat(
        [torch.from_numpy(draw.permutation(np.flatnonzero(labels == k))[:n]) for k, n in enumerate(wanted)]
    )


def wrong(found: LabelCounts, labels: Tensor) -> tuple[float, float]:
    """The share of images in a wrong class: (found, with equal counts)."""
    true = torch.bincount(labels, minlength=10) / len(labels)
    counts = found.counts / found.counts.sum()
    return float((counts - true).abs().sum() / 2), float((0.1 - true).abs().sum() / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--first", type=int, default=500, help="seed of the first client")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = lossless(arguments.root)
    print("network,images,epochs,rate,momentum,public,wrong,at most,equal counts,misfit")
    for trained in (False, True):
        torch.manual_seed(arguments.first)
        base = Quickstart()
        if trained:
            once = Training(OTHERS, 10, 0.05, 0.9)
            train(base, images[:OTHERS], labels[:OTHERS], once, torch.Generator().manual_seed(arguments.first))
        sent = {name: value.clone() for name, value in base.state_dict().items()}
        for how in TRAININGS:
            rows: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
            for seed in range(arguments.first, arguments.first + CLIENTS):
                own = OTHERS + client(labels[OTHERS:], how.images, seed)
                model = Quickstart()
                model.load_state_dict(sent)
                steps = train(model, images[own], labels[own], how, torch.Generator().manual_seed(seed))
                observation = Observation(Quickstart(), ((sent, dict(model.state_dict())),), SHAPE)
                for public, own_rows in rows.items():
                    told = Knowledge(num_private=len(own), learning_rate=how.rate, steps=steps,
                                     public_images=images[:PUBLIC] if public else None)  # fmt: skip
                    found = estimate_label_counts(observation, told, momentum=max(how.momentum, 0.0))
                    own_rows.append((*wrong(found, labels[own]), found.misfit))
            for public, own_rows in rows.items():
                share, equal, misfit = np.array(own_rows).T
                name = ("random weights", "trained")[trained]
                values = [share.mean(), share.max(), equal.mean(), misfit.max()]
                print(name, *how, public, *(f"{value:.3f}" for value in values), sep=",", flush=True)


if __name__ == "__main__":
    main()
