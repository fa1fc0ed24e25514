"""Which constants of the search for maps matter: each halved and doubled.

    python -m tests.benchmarks.map_sensitivity [--clients 3] [--steps 1 8] [--constants GROUP.name …]

Clients of a small untrained network (16 channels at 8 x 8, then 64 at 4 x 4), two images of nobody each, one step or
several; a line for each constant: maps within 5 % of a private one, and strays, farther than 25 % from all,
over all clients: as it is, halved and doubled. Steps and rate of a descent are scaled together. Constants from images
to pixels take no part. One thread.
"""

import argparse
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.interface.observation import State
from attacks.span.maps.search import find_maps
from attacks.span.thresholds import MAP_KERNEL, MAP_SEARCH
from tests.benchmarks.map_strays import decoys, network, read
from tests.benchmarks.sensitivity import FACTORS, constants_in

IMAGES = 2
WITHIN, STRAY = 0.05, 0.25  # relative errors


def trained(model: nn.Module, images: Tensor, steps: int, rate: float = 0.01) -> State:
    """The parameters after so many full-batch steps; the network keeps its own."""
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    sgd = torch.optim.SGD(model.parameters(), rate / steps)
    for _ in range(steps):
        sgd.zero_grad()
        F.cross_entropy(model(images), torch.arange(len(images))).backward()
        sgd.step()
    final = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(initial)
    return final


def counted(model: nn.Module, clients: Sequence[tuple[State, Tensor, Tensor]], attack: int = 0) -> tuple[int, int]:
    """(maps within 5 %, strays) of all clients: what they returned, their images, decoys. attack: its seed."""
    within = strays = 0
    for seed, (final, images, others) in enumerate(clients):
        update = read(model, final)
        generator = torch.Generator().manual_seed(1000 * attack + seed)
        with torch.no_grad():
            found = find_maps(update, update.network.maps(update.seen, others), generator, lambda *done: None)
            true = update.network.maps(update.sent, images).flatten(1)
            accepted = found.maps[: min(found.num_accepted, update.count or found.num_accepted)].flatten(1)
        error = torch.cdist(true, accepted) / true.norm(dim=1, keepdim=True)
        if len(accepted):
            within += int((error.min(1).values < WITHIN).sum())
            strays += int((error.min(0).values > STRAY).sum())
    return within, strays


def lines(model: nn.Module, clients: Sequence[tuple[State, Tensor, Tensor]], chosen: Sequence[str]) -> Iterator[str]:
    """One for chance, and one for each constant."""
    usual = [counted(model, clients, attack) for attack in range(3)]
    yield f"other seeds of the attack,,{' '.join(map(shown, usual))}"
    for constant in (each for group in (MAP_KERNEL, MAP_SEARCH) for each in constants_in(group)):
        if chosen and constant.label not in chosen:
            continue
        found = []
        for factor in FACTORS:
            with constant.set_to(constant.scaled(factor)):
                found.append(tried(model, clients))
        yield f"{constant.label},{constant.value},{shown(usual[0])},{','.join(found)}"


def tried(model: nn.Module, clients: Sequence[tuple[State, Tensor, Tensor]]) -> str:
    """What comes back, or the error that this value leads to."""
    try:
        return shown(counted(model, clients))
    except (RuntimeError, ValueError, IndexError) as error:
        return type(error).__name__


def shown(found: tuple[int, int]) -> str:
    return f"{found[0]}/{found[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--constants", nargs="*", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = network((3, 8, 16, 64, 64), (2, 2, 2, 1))
    others = decoys(100, 30_000)
    for steps in options.steps:
        print(f"{options.clients} clients of {IMAGES} images, {steps} steps: maps within {WITHIN} / strays")
        print("constant,value,as it is,halved,doubled")
        images = [decoys(IMAGES, 40_000 + seed) for seed in range(options.clients)]
        clients = [(trained(model, each, steps), each, others) for each in images]
        for line in lines(model, clients, options.constants):
            print(line, flush=True)


if __name__ == "__main__":
    main()
