"""How many images the span attack returns as their number approaches the width of an MLP, and how many are nobody's.

`python -m tests.benchmarks.width --root DATA --clients 50` prints a line of CSV for each number of images and each
knowledge: of so many clients of held-out images, how many came back within 20 and 40 dB, how many returned ones are
strays, and the most strays per hundred that this leaves possible (Clopper and Pearson, 95 %, one-sided).
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from attacks import get_attack
from attacks.interface.knowledge import Knowledge
from attacks.interface.torch_tools import torch_generator
from clients.config import TrainingConfig
from tests.benchmarks.held_out import DATA, Kind, Tally, make_client, mlp, pixel_mean
from tests.benchmarks.strays import bound

TRAINING = TrainingConfig(epochs=5, batch_size=8, learning_rate=0.05)
SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)  # images per unit of the width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--data", choices=DATA, default="mnist")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--clients", type=int, default=50, help="at most; fewer where so many images were returned")
    parser.add_argument("--returned", type=int, default=600, help="images returned, after which no further is drawn")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first client")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("data,width,images,mean,clients,private,exact,recovered,returned,strays,at_most_percent", flush=True)
    mean = pixel_mean(given.data, given.root / given.data)
    for share in given.shares:
        kind = Kind("width", round(share * given.width), mlp(given.width), TRAINING, classes=10)
        for name, told in (("told", Knowledge(pixel_mean=mean)), ("not told", Knowledge())):
            print_line(replace(kind, name=name, told=told), given)


def print_line(kind: Kind, given: argparse.Namespace) -> None:
    """A line of CSV of the clients of one kind."""
    tally, returned, clients = Tally(), 0, 0
    while clients < given.clients and returned < given.returned:
        seed = given.first + clients
        client = make_client(kind, given.data, given.root / given.data, seed)
        found = get_attack("span").run(client.observation, kind.told, torch_generator(seed, "width")).images
        tally, returned, clients = tally + Tally.of(client.private, found), returned + len(found), clients + 1
    most = f"{100 * bound(tally.strays, returned):.2g}" if returned else ""
    counts = (clients, tally.private, tally.exact, tally.recovered, returned, tally.strays, most)
    print(",".join(map(str, (given.data, given.width, kind.images, kind.name, *counts))), flush=True)


if __name__ == "__main__":
    main()
