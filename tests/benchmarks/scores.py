"""What scores make of images that an eye would know and of a guess at the classes: `python -m tests.benchmarks.scores`.

Every draw has 20 private images and 500 public ones of a test split; nothing is attacked.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor
from torch.nn import functional

from attacks import Pool, score
from attacks.calibration import exact_interval
from attacks.interface.torch_tools import numpy_generator, torch_generator
from clients.config import DataConfig
from clients.data import load_dataset

ROOT = Path("../shared/data")
DATA = ("mnist", "cifar10")
SEEDS = range(100, 150)  # nothing was chosen with these in view
PRIVATE, PUBLIC, OTHERS = 20, 500, 20
CENTRES, SEEN = 30, 400  # of k-means, and images of the class that it sees
COUNTS = ("recovered", "recovered_affine", "recognized")
Change = Callable[[Tensor, Tensor, torch.Generator], Tensor]
CHANGES: dict[str, Change] = {
    "inverted": lambda images, others, draws: 1 - images,
    "mirrored": lambda images, others, draws: images.flip(3),
    "shifted by one pixel": lambda images, others, draws: functional.pad(images, (1, 0))[..., :-1],
    "blurred, 3 x 3": lambda images, others, draws: functional.avg_pool2d(images, 3, 1, 1),
    "noise of 0.15": lambda images, others, draws: images + 0.15 * torch.randn(images.shape, generator=draws),
    "other images": lambda images, others, draws: others,
}


def changed(images: Tensor, seed: int) -> Iterator[tuple[str, dict]]:
    """(change, the scores of 20 private images that came back so) of a draw from images (T, C, H, W)."""
    order = torch.as_tensor(numpy_generator(seed, "scores").permutation(len(images)))
    private, public, others = images[order[: PRIVATE + PUBLIC + OTHERS]].split((PRIVATE, PUBLIC, OTHERS))
    for name, change in CHANGES.items():
        returned = change(private, others, torch_generator(seed, "noise"))
        yield name, score(private, returned, Pool(public, private), numpy_generator(seed, "floor")).columns()


def guessed(images: Tensor, labels: Tensor, seed: int, kind: int) -> Iterator[tuple[str, dict]]:
    """(what is known of classes, the scores of a guess at them): 20 private images of one class, and a pool of all."""
    mixed = torch.as_tensor(numpy_generator(seed, "scores").permutation(len(images)))
    own = mixed[labels[mixed] == kind]
    chosen, others, seen = own[: PRIVATE + OTHERS + SEEN].split((PRIVATE, OTHERS, SEEN))
    used = torch.zeros(len(images), dtype=torch.bool)
    used[own[: PRIVATE + OTHERS + SEEN]] = True
    rest = torch.cat([own[PRIVATE + OTHERS + SEEN :][: PUBLIC // 10], mixed[labels[mixed] != kind]])[:PUBLIC]
    flat = kmeans2(images[seen].flatten(1).numpy(), CENTRES, seed=seed, minit="++")[0]
    centres = torch.from_numpy(flat).float().view(-1, *images.shape[1:])
    for name, returned in (("20 others of the class", images[others]), ("30 centres of the class", centres)):
        for known in (False, True):
            told = (labels[rest], labels[chosen]) if known else ()
            pool = Pool(images[rest], images[chosen], *told)
            own_labels = labels[chosen] if known else None
            columns = score(images[chosen], returned, pool, numpy_generator(seed, "floor"), labels=own_labels).columns()
            yield f"{name}, classes {'known' if known else 'unknown'}", columns


def print_changes(data: str) -> None:
    test = load_dataset(DataConfig(name=data, root=str(ROOT))).test
    everything = test.images(np.arange(len(test.labels)))
    found: dict[str, list[dict]] = {}
    for seed in SEEDS:
        for name, columns in changed(everything, seed):
            found.setdefault(name, []).append(columns)
    print(f"\n| {data}, {len(SEEDS)} draws of {PRIVATE} | {' | '.join(COUNTS)} | leakage | threshold |")
    for name, rows in found.items():
        shares = [_share(sum(row[count] for row in rows), len(rows) * PRIVATE) for count in COUNTS]
        means = [f"{np.mean([row[column] for row in rows]):.2f}" for column in ("leakage", "recognized_threshold")]
        print(f"| {name} | {' | '.join(shares + means)} |")


def print_guesses() -> None:
    test = load_dataset(DataConfig(name="mnist", root=str(ROOT))).test
    images, labels = test.images(np.arange(len(test.labels))), torch.from_numpy(test.labels)
    found: dict[str, list[dict]] = {}
    for seed in SEEDS:
        for name, columns in guessed(images, labels, seed, seed % 10):
            found.setdefault(name, []).append(columns)
    scores = ("recovered", "recognized", "leakage", "floor_leakage", "class_floor_leakage", "null_leakage")
    ps = ("null_p", "null_recovered_p", "null_recognized_p")
    print(f"\n| {len(SEEDS)} draws | {' | '.join(scores)} | {' | '.join(f'{p} <= 0.05' for p in ps)} |")
    for name, rows in found.items():
        means = [f"{np.mean([row[column] for row in rows]):.2f}" for column in scores]
        small = [f"{np.mean([row[p] <= 0.05 for row in rows if not np.isnan(row[p])]):.2f}" for p in ps]
        print(f"| {name} | {' | '.join(means + small)} |")


def _share(count: int, of: int) -> str:
    low, high = exact_interval(int(count), of)
    return f"{count / of:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in DATA:
        print_changes(name)
    print_guesses()
