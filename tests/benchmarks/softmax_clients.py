"""Odd clients of a softmax regression, and what `span` returns of them that is nobody's.

`python -m tests.benchmarks.softmax_clients --first 1000 --clients 400`: one to twelve vectors, some equal or nearly so,
of 3 to 100 classes; one to ten steps, in batches too, with momentum, weight decay or Adam; smoothed labels, weighted
classes, updates with noise or rounded to bfloat16. Plain clients take one step on all. A stray is farther from every
private vector than 6 % of its length.
"""

import argparse
import random
from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.interface.observation import State

STRAY = 0.06


@dataclass(frozen=True)
class Training:
    """What a client does, at random."""

    steps: int
    rate: float
    batch: int
    optimizer: str
    smoothing: float
    weighted: bool
    noise: float
    bfloat16: bool

    @classmethod
    def drawn(cls, draw: random.Random) -> "Training":
        rate, optimizer = (
            draw.choice((1e-4, 1e-3, 0.01, 0.1, 1.0)),
            draw.choice(("sgd",) * 3 + ("momentum", "decay", "adam")),
        )
        if draw.random() < 0.3:
            return cls(1, rate, 0, draw.choice(("sgd", "momentum", "decay")), 0.0, False, 0.0, False)
        steps, batch, smoothing = draw.choice((1, 2, 3, 10)), draw.choice((0, 0, 1, 2)), draw.choice((0, 0, 0.01, 0.1))
        noise = draw.choice((0.0, 0.0, 1e-6, 1e-4, 1e-2))
        return cls(steps, rate, batch, optimizer, smoothing, draw.random() < 0.15, noise, draw.random() < 0.1)

    @property
    def plain(self) -> bool:
        others = (self.batch, self.smoothing, self.weighted, self.noise, self.bfloat16)
        return self.steps == 1 and self.optimizer != "adam" and not any(others)

    def returned(self, model: nn.Module, images: Tensor, classes: Tensor) -> State:
        """Train the model, and return what the client does."""
        sent = {name: value.clone() for name, value in model.state_dict().items()}
        weights = torch.rand(model[1].out_features) + 0.5 if self.weighted else None
        options = {"momentum": 0.9 * (self.optimizer == "momentum"), "weight_decay": 0.01 * (self.optimizer == "decay")}
        sgd = torch.optim.SGD(model.parameters(), self.rate, **options)
        optimizer = torch.optim.Adam(model.parameters(), self.rate) if self.optimizer == "adam" else sgd
        for _ in range(self.steps):
            for part in torch.randperm(len(images)).split(self.batch or len(images)):
                optimizer.zero_grad()
                outputs = model(images[part])
                F.cross_entropy(outputs, classes[part], weights, label_smoothing=self.smoothing).backward()
                optimizer.step()
        back = {}
        for name, value in model.state_dict().items():
            size = (value - sent[name]).square().mean().sqrt()
            back[name] = value + self.noise * size * torch.randn_like(value)
        return {name: value.bfloat16().float() for name, value in back.items()} if self.bfloat16 else back


def drawn_client(seed: int) -> tuple[Observation, Tensor, bool]:
    """(what is seen of a client, its vectors (N, D), whether it is plain)."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    classes, size = draw.choice((3, 5, 10, 10, 20, 100)), draw.choice((32, 64, 256))
    count = draw.randint(1, max(1, min(12, (classes - 1) // 2)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, classes))
    model[1].weight.data *= draw.choice((1, 1, 5, 20))
    vectors = torch.randn(count, 1, 1, size) * draw.choice((1, 0.2)) + draw.choice((0, 0.5, 2))
    vectors = vectors.relu() if draw.random() < 0.5 else vectors
    if count > 1 and draw.random() < 0.2:
        vectors[1] = vectors[0] + draw.choice((0, 0.01)) * torch.randn(size)
    labels = torch.randint(classes, (count,)) if draw.random() < 0.7 else torch.zeros(count, dtype=torch.long)
    sent, training = {name: value.clone() for name, value in model.state_dict().items()}, Training.drawn(draw)
    back = training.returned(model, vectors, labels)
    return Observation(model, ((sent, back),), (1, 1, size)), vectors.flatten(1), training.plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=400)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = {True: Counter[str](), False: Counter[str]()}
    for seed in range(chosen.first, chosen.first + chosen.clients):
        observation, private, plain = drawn_client(seed)
        rows[plain].update(clients=1, private=len(private))
        try:
            found = get_attack("span").run(observation, Knowledge(), torch.Generator().manual_seed(seed)).images
        except InputError:
            rows[plain].update(refused=1)
            continue
        apart = torch.cdist(found.flatten(1), private) / private.norm(dim=1)
        right = int((apart < STRAY).any(0).sum()) if len(found) else 0
        strays = int((apart.amin(1) >= STRAY).sum()) if len(found) else 0
        rows[plain].update(returned=len(found), right=right, strays=strays)
        if strays:
            print(f"strays of client {seed}: {strays} of {len(found)}", flush=True)
    names = ("clients", "refused", "private", "right", "returned", "strays")
    print(f"| {' | '.join(names)} |")
    for plain, row in rows.items():
        print(
            f"| {'plain' if plain else 'odd'}, {row['clients']} | {' | '.join(str(row[name]) for name in names[1:])} |"
        )


if __name__ == "__main__":
    main()
