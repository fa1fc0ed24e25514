"""How often `span` gives back every image of a client of raw CIFAR-10 images, told nothing.

    python -m tests.benchmarks.raw_images --root DATA --first 300 --clients 40

A client has eight images as they are (0 to 1, no mean subtracted) in batches of four, five epochs of SGD, an MLP of
3072-256-128-10. Half of its images are first used after a step: they fit parameters that the attack does not have. One
line for each client as it is done, a line of rates at the end.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from attacks import Knowledge, Observation, get_attack, torch_generator
from attacks.calibration import exact_interval

IMAGES, BATCH, EPOCHS, RATE = 8, 4, 5, 0.02
EXACT, RECOVERED = 0.5, 5.54  # L2 of an image of 3,072 pixels: the second is a PSNR of 20 dB


def network() -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def client(images: np.ndarray, labels: np.ndarray, seed: int) -> tuple[torch.Tensor, Observation]:
    """(private images (8, 3, 32, 32), what a server sees of their training)."""
    chosen = np.random.default_rng(70_000 + seed).permutation(len(images))[:IMAGES]
    pixels = torch.tensor(images[chosen].transpose(0, 3, 1, 2) / 255, dtype=torch.float32)
    classes = torch.tensor(labels[chosen].astype(np.int64)).flatten()
    torch.manual_seed(101 + seed)
    model, order = network().train(), torch.Generator().manual_seed(900 + seed)
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for batch in torch.randperm(IMAGES, generator=order).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels[batch]), classes[batch]).backward()
            optimizer.step()
    returned = {name: value.clone() for name, value in model.state_dict().items()}
    return pixels, Observation(network(), ((sent, returned),), (3, 32, 32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder with cifar10/cifar10_lossless_subset.npz")
    parser.add_argument("--first", type=int, default=300, help="seed of the first client")
    parser.add_argument("--clients", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with np.load(given.root / "cifar10" / "cifar10_lossless_subset.npz") as data:
        images, labels = data["x_test"], data["y_test"]
    whole = recovered = returned = off = strays = 0
    print("seed,returned,recovered,off,strays")
    for seed in range(given.first, given.first + given.clients):
        private, observation = client(images, labels, seed)
        found = get_attack("span").run(observation, Knowledge(), torch_generator(seed, "attack"))
        distances = torch.cdist(found.pixels().flatten(1), private.flatten(1))
        near, nearest = distances.amin(0) < RECOVERED, distances.amin(1)
        row = len(distances), int(near.sum()), int((nearest > EXACT).sum()), int((nearest > RECOVERED).sum())
        print(seed, *row, sep=",", flush=True)
        whole, recovered, returned = whole + bool(near.all()), recovered + row[1], returned + row[0]
        off, strays = off + row[2], strays + row[3]
    low, high = exact_interval(whole, given.clients)
    print(f"all {IMAGES} images of {whole} of {given.clients} clients ({low:.0%} to {high:.0%})")
    print(f"{recovered} of {IMAGES * given.clients} images recovered")
    print(f"of {returned} returned {off} are off by more than {EXACT}, {strays} are nobody's")


if __name__ == "__main__":
    main()
