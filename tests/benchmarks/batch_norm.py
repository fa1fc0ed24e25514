"""Images behind BatchNorm1d that normalized a client's only batch: how many the span attack returns.

`python -m tests.benchmarks.batch_norm --root DATA` prints a line of CSV for each width and number of images. Clients of
held-out MNIST digits, Linear - BatchNorm1d - ReLU twice and a linear layer, one full step of SGD; the attacker is told
nothing. Bounds as in `tests.benchmarks.width`.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from attacks import get_attack
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.torch_tools import torch_generator
from tests.benchmarks.held_out import Tally, draw_images
from tests.benchmarks.strays import bound

LEARNING_RATE = 0.05


def network(pixels: int, width: int) -> nn.Sequential:
    hidden = [nn.Linear(pixels, width), nn.BatchNorm1d(width), nn.ReLU()]
    hidden += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10)).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--widths", type=int, nargs="+", default=[1024])
    parser.add_argument("--images", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--first", type=int, default=6000, help="seed of the first client")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("width,images,clients,private,exact,recovered,returned,strays,at_most_percent,held", flush=True)
    for width in given.widths:
        for number in given.images:
            tally, returned, held = Tally(), 0, Tally()
            for seed in range(given.first, given.first + given.clients):
                images, labels = draw_images("mnist", given.root / "mnist", number, seed)
                torch.manual_seed(seed)
                model = network(images[0].numel(), width)
                sent = {name: value.clone() for name, value in model.state_dict().items()}
                cross_entropy(model(images), labels).backward()
                torch.optim.SGD(model.parameters(), LEARNING_RATE).step()
                back = {name: value.clone() for name, value in model.state_dict().items()}
                observation = Observation(model, ((sent, back),), tuple(images.shape[1:]))
                found = get_attack("span").run(observation, Knowledge(), torch_generator(seed, "batch norm"))
                everything = found.images if found.held is None else torch.cat([found.images, found.held])
                tally, returned = tally + Tally.of(images, found.images), returned + len(found.images)
                held = held + Tally.of(images, everything)
            most = f"{100 * bound(tally.strays, returned):.2g}" if returned else ""
            counts = (tally.private, tally.exact, tally.recovered, returned, tally.strays, most, held.recovered)
            print(",".join(map(str, (width, number, given.clients, *counts))), flush=True)


if __name__ == "__main__":
    main()
