"""How many images the span attack returns as their number approaches the width of an MLP.

`python -m tests.benchmarks.width --root DATA --widths 128 --images 16 32 48` prints a line of CSV for each client: how
many of its N images, from MNIST's test split, lie within L2 0.5 of a returned image, and of one returned or held.
"""

import argparse
import time
from pathlib import Path

import torch

from attacks import Reconstruction, get_attack
from attacks.interface.seeding import torch_generator
from clients.config import TrainingConfig
from tests.benchmarks.held_out import Client, Kind, make_client, mlp

WITHIN = 0.5  # L2 distance of an image that came back
STRAY = 2.0  # L2 distance from every private image, from which a returned one is a stray


def training(name: str, images: int) -> TrainingConfig:
    """One full-batch step, or five epochs of ten images."""
    if name == "step":
        return TrainingConfig(epochs=1, batch_size=images, learning_rate=0.05)
    return TrainingConfig(epochs=5, batch_size=10, learning_rate=0.05)


def count(client: Client, found: Reconstruction) -> tuple[int, int, int]:
    """How many private images came back, how many with those held, and how many returned ones are strays."""
    private, returned = client.private.flatten(1), found.images.flatten(1).cpu()
    held = returned if found.held is None else torch.cat([returned, found.held.flatten(1).cpu()])
    near = [int((torch.cdist(private, some).amin(1) < WITHIN).sum()) if len(some) else 0 for some in (returned, held)]
    strays = int((torch.cdist(private, returned).amin(0) > STRAY).sum()) if len(returned) else 0
    return near[0], near[1], strays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--widths", type=int, nargs="+", default=[128])
    parser.add_argument("--images", type=int, nargs="+", default=[16, 32, 48, 64, 96, 128])
    parser.add_argument("--training", nargs="+", choices=("step", "epochs"), default=["step", "epochs"])
    parser.add_argument("--rounds", type=int, nargs="+", default=[1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    print("width,training,rounds,images,seed,returned,with_held,strays,seconds,why", flush=True)
    cases = [
        (width, kind, rounds, images, seed)
        for width in given.widths
        for kind in given.training
        for rounds in given.rounds
        for images in given.images
        for seed in given.seeds
    ]
    for width, kind, rounds, images, seed in cases:
        what = Kind("width", images, mlp(width), training(kind, images), rounds=rounds, classes=10)
        client = make_client(what, "mnist", given.root / "mnist", seed)
        before = time.perf_counter()
        found = get_attack("span").run(client.observation, what.told, torch_generator(seed, "width"))
        took = time.perf_counter() - before
        row = (width, kind, rounds, images, seed, *count(client, found), f"{took:.1f}", " ".join(found.warnings)[:70])
        print(",".join(map(str, row)), flush=True)


if __name__ == "__main__":
    main()
