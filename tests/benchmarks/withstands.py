"""What the span attack withstands: clients of held-out images, their local training and defenses varied one by one.

`python -m tests.benchmarks.withstands --root DATA`, DATA with a folder for each data set, prints a row of the table in
docs/records/span_withstands.md for each case and seed. The attack is told nothing, runs on one thread with its default
options, and its time is the processor's, in units of twenty 1024³ products that are measured before and after it.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks import InputError, Reconstruction, get_attack
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.torch_tools import torch_generator
from clients.config import TrainingConfig
from clients.defenses.base import Defense
from clients.defenses.compression import Quantization, TopK
from clients.defenses.filters import Clipping, Noise
from clients.training import encode_targets
from tests.benchmarks.held_out import Client, Kind, draw_images, make_client, mlp, observe
from tests.benchmarks.timing import four_products, seconds_of, timed

WITHIN = (0.1, 0.5, 1.0, 2.0)  # L2 distances of a private image from a returned one
STRAY = {"mnist": 2.0, "cifar10": 3.0}  # L2 distance from every private image, from which a returned one is a stray
HELD_WITHIN = 1.0
SEEDS = range(100, 103)
CPU = torch.device("cpu")


def sgd(epochs: int = 5, batch_size: int | None = 16, learning_rate: float = 0.05, **more: Any) -> TrainingConfig:
    return TrainingConfig(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, **more)


def of_100(name: str, defense: Defense | None = None, training: TrainingConfig | None = None) -> Kind:
    return Kind(name, 100, mlp(1024), training or sgd(), defense or Defense(), classes=10)


DRIFT = sgd(10, 10, 0.1, momentum=0.9)
PARITY = TrainingConfig(loss="mse", epochs=300, learning_rate=4e-3, momentum=0.9)
ADAM = TrainingConfig(optimizer="adam", epochs=5, batch_size=10, learning_rate=1e-3)


@dataclass(frozen=True)
class Case:
    """A kind of client. together: clients whose mean is observed, each with its share of the images. clipped: to this
    share of the update's norm."""

    kind: Kind
    data: str = "mnist"
    together: int = 1
    clipped: float | None = None

    def client(self, root: Path, seed: int) -> Client:
        kind, folder = self.kind, root / self.data
        if self.clipped is not None:
            plain = make_client(kind, self.data, folder, seed)
            norm = sum(float(value.square().sum()) for value in plain.observation.delta().values()) ** 0.5
            kind = replace(kind, defense=Clipping(norm * self.clipped))
        if self.together > 1 or kind.classes == 1:
            return self._mean(kind, folder, seed)
        return make_client(kind, self.data, folder, seed)

    def _mean(self, kind: Kind, folder: Path, seed: int) -> Client:
        """What a server that sees the aggregate alone sees of several clients; one output tells odd from even."""
        images, labels = draw_images(self.data, folder, kind.images, seed)
        labels = encode_targets(labels % 2, 2, 1, kind.training.loss) if kind.classes == 1 else labels
        parts = zip(images.chunk(self.together), labels.chunk(self.together), strict=True)
        seen = [observe(kind, own, classes, seed) for own, classes in parts]
        mean = {name: torch.stack([one.final[name] for one in seen]).mean(0) for name in seen[0].final}
        return Client(replace(seen[0], pairs=((seen[0].initial, mean),)), images, images[:0])


NOISES = (0.001, 0.01, 0.03, 0.05, 0.1)
BATCHES = sgd(batch_size=10)
CIFAR = Kind("CIFAR-10, width 2048, momentum 0.9, lr 0.02", 100, mlp(2048), sgd(5, 16, 0.02, momentum=0.9), classes=10)
ODD_EVEN = "odd/even, N = 200, width 2048, MSE, full batch, 300 steps, momentum 0.9"
CASES = [
    Case(of_100("as it is")),
    Case(of_100("the mean of 5 clients x 20, batches of 10", training=BATCHES), together=5),
    Case(Kind("N = 50, lr 0.1, momentum 0.9, 10 epochs of 10", 50, mlp(1024), DRIFT, classes=10)),
    Case(CIFAR, "cifar10"),
    Case(Kind(ODD_EVEN, 200, mlp(2048), PARITY, classes=1)),
    *(Case(of_100(f"weight decay {decay:g}", training=sgd(weight_decay=decay))) for decay in (1e-4, 1e-3, 1e-2)),
    Case(of_100("update clipped to a hundredth"), clipped=0.01),
    *(Case(of_100(f"noise {share:.1%} of the update's norm", Noise(share))) for share in NOISES),
    *(Case(of_100(f"{bits} bits, per tensor", Quantization(bits))) for bits in (8, 4)),
    *(Case(of_100(f"upper {share:.0%} of the entries", TopK(share))) for share in (0.5, 0.1)),
    Case(Kind("local Adam, N = 50, lr 1e-3", 50, mlp(1024), ADAM, classes=10)),
]


@dataclass(frozen=True)
class Outcome:
    """within: private images that have a returned one within each of WITHIN. held: those that have one within
    HELD_WITHIN among what the attack holds back. inferred: their number, as the attack says it. units: what it took."""

    within: tuple[int, ...]
    strays: int
    held: int
    inferred: int | None
    units: float
    refused: str = ""

    def __str__(self) -> str:
        counts = f"refused: {self.refused}" if self.refused else " / ".join(map(str, self.within))
        return f"{counts} | {self.strays} | {self.held} | {self.inferred} | {self.units:.0f}"


def counted(private: Tensor, found: Reconstruction, far: float, units: float) -> Outcome:
    """private: (N, C, H, W). far: from where a returned image is a stray."""
    returned, held = (near(private, images) for images in (found.images, found.held))
    within = tuple(int((returned.amin(1) <= bound).sum()) for bound in WITHIN)
    strays = int((returned.amin(0) > far).sum()) if len(found.images) else 0
    kept = int((held.amin(1) <= HELD_WITHIN).sum())
    refused = "" if len(found.images) else "; ".join(found.warnings)
    return Outcome(within, strays, kept, found.num_inferred, units, refused)


def near(private: Tensor, images: Tensor | None) -> Tensor:
    """(N, M): L2 of every private image to each of these; (N, 1) without end where there is none."""
    if images is None or not len(images):
        return torch.full((len(private), 1), torch.inf)
    return torch.cdist(private.flatten(1), images.flatten(1))


def attacked(client: Client, far: float, seed: int) -> Outcome:
    def unit() -> float:
        return 5 * timed([four_products(CPU)], CPU, turns=1)[0]

    found: list[Reconstruction] = []
    before = unit()
    taken = seconds_of(lambda: found.append(run(client.observation, seed)), CPU)
    return counted(client.private, found[0], far, 2 * taken / (before + unit()))


def run(observation: Observation, seed: int) -> Reconstruction:
    return get_attack("span").run(observation, Knowledge(), torch_generator(seed, "withstands"))


def rows(root: Path, wanted: str, seeds: list[int]) -> Iterator[str]:
    for case in CASES:
        if wanted in case.kind.name:
            for seed in seeds:
                try:
                    outcome: object = attacked(case.client(root, seed), STRAY[case.data], seed)
                except InputError as error:
                    outcome = f"refused: {error} | 0 | 0 | | "
                yield f"| {case.kind.name} | {seed} | {outcome} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--cases", default="", help="only those with this in their name")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| case | seed | within 0.1 / 0.5 / 1 / 2 | stray | held within 1 | N inferred | u |")
    print("|---|---|---|---|---|---|---|")
    for row in rows(given.root, given.cases, given.seeds):
        print(row, flush=True)


if __name__ == "__main__":
    main()
