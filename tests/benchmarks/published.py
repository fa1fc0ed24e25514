"""Our attacks beside published figures, each on the setting of those who published it: docs/records/published.md.

`python -m tests.benchmarks.published --root DATA --out published.jsonl` runs every row and prints a table; draws that
stand in the file are not run again. Every client sends one gradient, in float64, as in all of these publications.
"""

import argparse
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.interface.torch_tools import numpy_generator, torch_generator
from attacks.scoring.images import psnr, ssim
from clients.config import DataConfig
from clients.data import Dataset, load_dataset
from simulator.reports.benchmark_table import cluster_interval, half_width

MEAN = (0.4914672374725342, 0.4822617471218109, 0.4467701315879822)  # of the repositories of both attacks on CIFAR-10
STD = (0.24703224003314972, 0.24348513782024384, 0.26158785820007324)
WIDTH, DEVIATION, EXACT = 1000, 0.5, 0.01  # the cascade's: units, of weights, L2 between images that counts as exact
STEP = 0.01  # rate of the step that gives away the cascade's gradient: with smaller ones, rounding hides images
CODE, BETA = 256, 1e-3  # PRECODE's: entries of its code, weight of its penalty
RANDOM = ("bottleneck", "last")  # layers whose gradients the code makes random
Found = tuple[float, bool]
"""The score of a draw, and whether the attack returned no image."""


@dataclass(frozen=True)
class Row:
    """theirs: the published figure; NaN where there is none. score: of (data, seed). decibels: of a PSNR; else the
    score lies in [0, 1]."""

    theirs: float
    score: Callable[[Dataset, int], Found]
    draws: int = 10
    data: str = "cifar10"
    decibels: bool = False


class Client(NamedTuple):
    """images: (N, C, H, W) in [0, 1]. labels: N classes."""

    images: Tensor
    labels: tuple[int, ...]

    @classmethod
    def drawn(cls, data: Dataset, count: int, seed: int) -> "Client":
        """Of the training split, as both publications that draw images draw them."""
        own = numpy_generator(seed, "published").permutation(len(data.train.labels))[:count]
        return cls(data.train.images(own).double(), tuple(data.train.labels[own].tolist()))

    def observed(
        self, model: nn.Module, inputs: Tensor, penalty: Tensor | float = 0.0, rate: float = 1.0
    ) -> Observation:
        """The gradient of cross-entropy and a penalty, as a step from the parameters of `model`, float64."""
        sent = {name: value.clone() for name, value in model.state_dict().items()}
        loss = F.cross_entropy(model(inputs), torch.tensor(self.labels)) + penalty
        parameters = dict(model.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        moved = {name: sent[name] - rate * part for name, part in zip(parameters, gradients, strict=True)}
        shape = (int(inputs.shape[1]), int(inputs.shape[2]), int(inputs.shape[3]))
        return Observation(model, ((sent, sent | moved),), shape)


def cascade(count: int, published_weights: bool, data: Dataset, seed: int) -> Found:
    """The share of `count` images of [0, 1] that come back exactly from one hidden layer; told their number, as there.

    published_weights: N(0, 0.5²), then Glorot's uniform ones, no biases; else torch's.
    """
    client, draws = Client.drawn(data, count, seed), torch_generator(seed, "published")
    pixels = client.images[0].numel()
    first, last = nn.Linear(pixels, WIDTH, dtype=torch.float64), nn.Linear(WIDTH, 10, dtype=torch.float64)
    for layer, bound in ((first, pixels**-0.5), (last, WIDTH**-0.5)):
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=draws)
    if published_weights:
        nn.init.normal_(first.weight, 0.0, DEVIATION, generator=draws)
        nn.init.xavier_uniform_(last.weight, generator=draws)
        for layer in (first, last):
            nn.init.zeros_(layer.bias)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
    observation = client.observed(model, client.images, rate=STEP)
    found = get_attack("span").run(observation, Knowledge(count), torch_generator(seed, "span")).images.double()
    away = torch.cdist(client.images.flatten(1), found.flatten(1))
    return float((away < EXACT).any(1).double().mean()), not len(found)


def normalized(images: Tensor) -> Tensor:
    """Pixels less the mean over the deviation, channel by channel."""
    mean, deviation = (torch.tensor(part, dtype=images.dtype).view(-1, 1, 1) for part in (MEAN, STD))
    return (images - mean) / deviation


def pixels_of(inputs: Tensor) -> Tensor:
    """The other way, cut at 0 and 1."""
    mean, deviation = (torch.tensor(part, dtype=torch.float64).view(-1, 1, 1) for part in (MEAN, STD))
    return (inputs.double() * deviation + mean).clamp(0, 1)


def told_of(client: Client) -> Knowledge:
    """What Geiping et al. give their attack of one gradient, labels included."""
    count = len(client.labels)
    return Knowledge(count, client.labels, pixel_mean=MEAN, pixel_std=STD, learning_rate=1.0, steps=1)


def lenet_of_zhu(seed: int) -> nn.Module:
    """Three convolutions of 5x5 and 12 channels with sigmoids, one linear layer; all parameters uniform in ±0.5."""
    sizes, layers = ((3, 2), (12, 2), (12, 1)), list[nn.Module]()
    for channels, stride in sizes:
        layers += [nn.Conv2d(channels, 12, 5, stride, 2), nn.Sigmoid()]
    model, draws = nn.Sequential(*layers, nn.Flatten(), nn.Linear(768, 10)).double(), torch_generator(seed, "published")
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=draws)
    return model


def geiping(attack: str, data: Dataset, seed: int, **options: float) -> Found:
    """The PSNR of the validation image of index `seed`, whose client has its own weights; 0 where none is returned."""
    client = Client(data.test.images(np.array([seed])).double(), (int(data.test.labels[seed]),))
    observation = client.observed(lenet_of_zhu(seed), normalized(client.images))
    found = returned(attack, observation, client, seed, **options)
    return (0.0, True) if found is None else (float(psnr(client.images, found)[0]), False)


class Precode(nn.Module):
    """A random code of what comes in, (N, width), decoded: a Gaussian with a mean and a deviation for each image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(width, 2 * CODE), nn.Linear(CODE, width)

    def forward(self, given: Tensor) -> Tensor:
        mean, deviation = self.moments(given)
        return self.decoder(mean + deviation * torch.randn_like(deviation))

    def moments(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the code, (N, CODE) each."""
        mean, spread = self.encoder(given).chunk(2, 1)
        return mean, F.softplus(spread)

    def penalty(self, given: Tensor) -> Tensor:
        """β times the divergence from a standard normal code, in bits."""
        mean, deviation = self.moments(given)
        nats = -0.5 * (1 + 2 * deviation.log() - mean.square() - deviation.square()).sum(1).mean()
        return BETA * nats / math.log(2)


def precode(attack: str, left_out: Sequence[str] | None, data: Dataset, seed: int, **options: float) -> Found:
    """The SSIM, 0 at least, of one image of a network of two hidden layers of 1,024 units with PRECODE behind them.

    left_out: layers whose part of the gradient the attack does not look at; None takes PRECODE away.
    """
    torch.manual_seed(seed)  # weights, and the code that every pass of client and attacker draws anew
    client, bottleneck = Client.drawn(data, 1, seed), Precode(1024).double()
    hidden = (nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    body = nn.Sequential(nn.Flatten(), *hidden).double()
    parts = OrderedDict(body=body, bottleneck=bottleneck, last=nn.Linear(1024, 10).double())
    if left_out is None:
        del parts["bottleneck"]
    model, inputs = nn.Sequential(parts), normalized(client.images)
    observation = client.observed(model, inputs, 0.0 if left_out is None else bottleneck.penalty(body(inputs)))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(left_out or ())))
    found = returned(attack, observation, client, seed, **options)
    return (0.0, True) if found is None else (max(0.0, float(ssim(client.images, found)[0])), False)


def returned(attack: str, observation: Observation, client: Client, seed: int, **options: float) -> Tensor | None:
    """The first image that an attack returns, (1, C, H, W) in [0, 1]; None where it refuses or returns none."""
    try:
        found = get_attack(attack, **options).run(observation, told_of(client), torch_generator(seed, attack)).images
    except InputError:
        return None
    return pixels_of(found[:1]) if len(found) else None


MATCHING = dict(image_std=1.0)  # where both publications start
GEIPING = MATCHING | dict(iterations=1000, total_variation=1e-2)
PRECODE = MATCHING | dict(iterations=150, total_variation=1e-6)
CASCADE = {"cifar10": {64: 0.994, 128: 0.666}, "mnist": {64: 0.484, 128: 0.017}}
ROWS: dict[str, Row] = {
    **{
        f"cascade, {data}, B = {count}": Row(theirs, partial(cascade, count, True), data=data)
        for data, figures in CASCADE.items()
        for count, theirs in figures.items()
    },
    "cascade with torch's weights, cifar10, B = 64": Row(math.nan, partial(cascade, 64, False)),
    "Geiping, LeNet": Row(18.00, partial(geiping, "gradient_matching", **GEIPING), 100, decibels=True),
    "Geiping, LeNet, span": Row(math.nan, partial(geiping, "span"), 100, decibels=True),
    "without PRECODE": Row(0.99969, partial(precode, "gradient_matching", None, **PRECODE)),
    "PRECODE": Row(0.00450, partial(precode, "gradient_matching", (), **PRECODE), 20),
    "PRECODE, left out": Row(math.nan, partial(precode, "gradient_matching", RANDOM, **PRECODE), 20),
    "PRECODE, span": Row(math.nan, partial(precode, "span", ()), 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("published.jsonl"))
    parser.add_argument("--rows", default="", help="of the rows, those whose name begins so")
    parser.add_argument("--most", type=int, default=100, help="draws of a row, at most")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {(line["row"], line["seed"]): line for line in map(json.loads, lines)}
    print("| setting | theirs | ours | 95 % | theirs inside | none returned | seconds |\n" + "|---" * 7 + "|")
    for name, row in ROWS.items():
        if not name.startswith(given.rows):
            continue
        data = load_dataset(DataConfig(name=row.data, root=str(given.root)))
        seeds = range(min(row.draws, given.most))
        for seed in seeds:
            if (name, seed) not in done:
                done[name, seed] = {"row": name, "seed": seed, **measured(row, data, seed)}
                with given.out.open("a") as file:
                    file.write(json.dumps(done[name, seed]) + "\n")
        print(table_line(name, row, [done[name, seed] for seed in seeds]), flush=True)


def measured(row: Row, data: Dataset, seed: int) -> dict[str, float]:
    """A draw's score, whether nothing was returned, and the processor seconds that it took."""
    start = time.process_time()
    score, none = row.score(data, seed)
    return {"score": score, "none": int(none), "seconds": time.process_time() - start}


def table_line(name: str, row: Row, draws: list[dict]) -> str:
    """Clients are counted, not images: those of one come back together or not at all. seconds: the median."""
    index = pd.MultiIndex.from_tuples([(draw["seed"], 0) for draw in draws], names=["seed", "client"])
    scores = pd.Series([draw["score"] for draw in draws], index)
    mean, half = float(scores.mean()), half_width(scores)
    low, high = (mean - half, mean + half) if row.decibels else cluster_interval(scores)
    digits = 2 if row.decibels else 3
    inside = "" if math.isnan(row.theirs) else "yes" if low <= row.theirs <= high else "no"
    theirs = "" if math.isnan(row.theirs) else f"{row.theirs:g}"
    none, seconds = sum(draw["none"] for draw in draws), np.median([draw["seconds"] for draw in draws])
    ours = f"{mean:.{digits}f} | {low:.{digits}f} to {high:.{digits}f}"
    if row.decibels and none == len(draws):
        ours = " | "  # no image, no PSNR
    return f"| {name} | {theirs} | {ours} | {inside} | {none} of {len(draws)} | {seconds:.1f} |"


if __name__ == "__main__":
    main()
