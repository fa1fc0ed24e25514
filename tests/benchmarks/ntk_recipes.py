"""Recipes of the NTK attack at equal processor time, beside a plain loop written from the paper's equations alone.

`python -m tests.benchmarks.ntk_recipes --root DATA --out FILE --client paper --seeds 0 1 --seconds 10` adds a line of
JSON to FILE for each seed, number of seconds and recipe that is not in it yet, and prints its table; `--table` does
only that. Iterations are chosen from the cost of one, so that every schedule ends with the time that all have alike.

paper: 20 of MNIST's test images, odd against even, MLP 2 x 512 with one output, full batch, momentum 0.9, squared error
down to 1e-6. digits: a client of scenarios/defenses.yaml in round 16, ten digits of 8x8 pixels, one of each class.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks import Knowledge, Observation, get_attack
from attacks.interface.torch_tools import numpy_generator, torch_generator
from attacks.ntk.attack import DUAL_START
from attacks.scoring.images import matched_l2, psnr
from clients.config import DataConfig, TrainingConfig
from clients.data import load_dataset
from clients.models import build_model
from clients.training import encode_targets, train
from tests.benchmarks.held_out import Kind, draw_images, mlp, observe, pixel_mean

PAPER_IMAGES = 20
PAPER = TrainingConfig(loss="mse", learning_rate=1e-3, momentum=0.9, epochs=100_000, stop_at_loss=1e-6)
CLASSES, CLIENTS, CHOSEN, ROUNDS = 10, 40, 4, 16  # of the federation; a client has one image of each class
LOCAL = TrainingConfig(learning_rate=0.1, epochs=5, batch_size=4)
PUBLISHED = {"kernel": "final", "learning_rate": 0.02, "dual_normalization": "mean", "scale_duals": False}
PUBLISHED |= {"schedule": "constant", "patience": 0}
RECIPES: dict[str, dict] = {
    "default": {},
    "default before": {
        "kernel": "final",
        "learning_rate": 0.02,
    },  # until 2026-11-25, with duals begun at the length of Δθ
    "default before, hybrid": {"kernel": "hybrid", "learning_rate": 0.02},
    "published": PUBLISHED,
    "published, hybrid": PUBLISHED | {"kernel": "hybrid"},
    "plain loop": {},
    "plain loop, hybrid": {},
}
CALIBRATION = (20, 80)  # iterations of two runs, whose difference tells the cost of one
SCORES, COSTS = ("mean_l2", "within_20_db"), (("iterations", 0), ("seconds", 1))

Run = Callable[[int], Tensor]
"""From a number of iterations to candidates (M, C, H, W)."""


@dataclass(frozen=True)
class Attacked:
    """What is attacked. others: as many images of the same kind that its client does not hold. mean: as subtracted."""

    observation: Observation
    private: Tensor
    others: Tensor
    mean: float


def paper_client(seed: int, root: Path) -> Attacked:
    images, digits = draw_images("mnist", root / "mnist", 2 * PAPER_IMAGES, seed)
    targets = encode_targets(digits % 2, 2, 1, "mse")
    kind = Kind("paper", PAPER_IMAGES, mlp(512), PAPER, classes=1)
    private, others = images[:PAPER_IMAGES], images[PAPER_IMAGES:]
    observation = observe(kind, private, targets[:PAPER_IMAGES], seed)
    return Attacked(observation, private, others, pixel_mean("mnist", root / "mnist")[0])


def digits_client(seed: int, root: Path) -> Attacked:
    """FedAvg in so many lines: the last one that the seed chooses in the last round."""
    dataset, draws = load_dataset(DataConfig(name="digits")), numpy_generator(seed, "recipes")
    labels = torch.from_numpy(dataset.train.labels)
    mean = float(dataset.train.images(np.arange(len(labels))).mean())
    orders = [draws.permutation(np.flatnonzero(dataset.train.labels == label)) for label in range(CLASSES)]

    def images_of(client: int) -> tuple[Tensor, Tensor]:
        chosen = np.array([order[client] for order in orders])
        return dataset.train.images(chosen) - mean, labels[chosen]

    model = build_model(mlp(256), (1, 8, 8), CLASSES, seed)
    for number in range(ROUNDS):
        sent = {name: value.clone() for name, value in model.state_dict().items()}
        returned = []
        for client in draws.choice(CLIENTS, CHOSEN, replace=False):
            model.load_state_dict(sent)
            images, targets = images_of(client)
            train(model, images, targets, LOCAL, torch_generator(seed, "recipes", number, int(client)))
            returned.append({name: value.clone() for name, value in model.state_dict().items()})
        model.load_state_dict({name: torch.stack([end[name] for end in returned]).mean(0) for name in sent})
    return Attacked(Observation(model, ((sent, returned[-1]),), (1, 8, 8)), images, images_of(CLIENTS)[0], mean)


MAKERS = {"paper": paper_client, "digits": digits_client}


def plain_loop(client: Attacked, hybrid: bool, iterations: int, generator: torch.Generator) -> Tensor:
    """Equation 7 with appendices H and I by double backward; nothing is shared with `attacks.ntk`.

    Images N(0, 0.2²), M = 2N; duals U(−½, ½) of the mean over candidates and outputs, as in the authors' code; Adam at
    0.02; the penalty on the pixel range is 0.1 M times a mean over images and pixels. Returns candidates (M, C, H, W).
    """
    count, shape, mean = 2 * len(client.private), client.private.shape[1:], client.mean
    initial, final = (list(s.values()) for s in (client.observation.initial, client.observation.final))
    update = [after - before for before, after in zip(initial, final, strict=True)]
    kernels = [initial, final] if hybrid else [final]
    kernels = [[value.clone().requires_grad_() for value in kernel] for kernel in kernels]
    images = (0.2 * torch.randn((count, shape.numel()), generator=generator)).requires_grad_()
    duals = [(torch.rand((count, len(final[-1])), generator=generator) - 0.5).requires_grad_() for _ in kernels]
    adam = torch.optim.Adam([images, *duals], lr=0.02)
    for i in range(iterations):
        beta = min(10 + 10 ** (4 * i / iterations), 200)
        rest = update
        for kernel, dual in zip(kernels, duals, strict=True):
            hidden = images
            for weight, bias in zip(kernel[:-2:2], kernel[1:-2:2], strict=True):
                hidden = F.softplus(F.linear(hidden, weight, bias), beta)
            output = (dual * F.linear(hidden, kernel[-2], kernel[-1])).mean()
            gradients = torch.autograd.grad(output, kernel, create_graph=True)
            rest = [left - gradient for left, gradient in zip(rest, gradients, strict=True)]
        outside = torch.relu(images - (1 - mean)) ** 2 + torch.relu(-mean - images) ** 2
        loss = sum((left**2).sum() for left in rest) + 0.1 * count * outside.mean()
        adam.zero_grad()
        loss.backward(inputs=[images, *duals])
        adam.step()
    return images.detach().view(count, *shape)


def make_run(name: str, client: Attacked, seed: int) -> Run:
    options = RECIPES[name]

    def run(iterations: int) -> Tensor:
        generator = torch_generator(seed, "recipes")
        if name.startswith("plain loop"):
            return plain_loop(client, name.endswith("hybrid"), iterations, generator)
        known = Knowledge(num_private=len(client.private), pixel_mean=(client.mean,))
        start = 1.0 if "before" in name else DUAL_START
        with mock.patch("attacks.ntk.attack.DUAL_START", start):
            return get_attack("ntk", iterations=iterations, **options).run(client.observation, known, generator).images

    return run


def timed(run: Run, iterations: int) -> tuple[Tensor, float]:
    """(candidates, processor seconds)."""
    start = time.process_time()
    found = run(iterations)
    return found, time.process_time() - start


def measure(run: Run, client: Attacked, seconds: float) -> dict[str, float]:
    """A run of about so many processor seconds, scored."""
    few, many = CALIBRATION
    run(3)  # what is loaded once costs nobody anything
    short, long = (timed(run, n)[1] for n in CALIBRATION)
    cost = (long - short) / (many - few)
    iterations = max(1, round((seconds - short) / cost) + few)
    found, spent = timed(run, iterations)
    return {**scored(client.private, found), "seconds": round(spent, 2), "iterations": iterations}


def scored(private: Tensor, found: Tensor) -> dict[str, float]:
    """By the closest pairs, one to one. Pixels range over 1."""
    l2, match = matched_l2(private, found)
    within = int((psnr(private, found[match]) >= 20).sum())
    return {"mean_l2": round(float(l2.mean()), 4), "within_20_db": within}


def add_lines(out: Path, root: Path, kind: str, seeds: list[int], seconds: list[float], recipes: list[str]) -> None:
    done = {(line["client"], line["seed"], line["budget"], line["recipe"]) for line in read(out)}
    for budget in seconds:
        for seed in seeds:
            missing = [name for name in recipes if (kind, seed, budget, name) not in done]
            if not missing:
                continue
            client = MAKERS[kind](seed, root)
            floor = scored(client.private, client.others)["mean_l2"]
            for name in missing:
                found = measure(make_run(name, client, seed), client, budget)
                line = {"client": kind, "seed": seed, "budget": budget, "recipe": name, **found, "floor": floor}
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


def read(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []


def interval(values: list[float]) -> str:
    """Mean and half the width of its 95 % interval (Student's t)."""
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.2f} ± {half:.2f}"


def print_table(lines: list[dict]) -> None:
    """Every recipe of each client and number of seconds, and by how much the first of them differs from it, paired by
    seed."""
    print("| client | recipe | mean L2 | within 20 dB | first less it: L2 | within 20 dB | iterations | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, budget in sorted({(line["client"], line["budget"]) for line in lines}):
        rows = [line for line in lines if (line["client"], line["budget"]) == (kind, budget)]
        of = {name: {row["seed"]: row for row in rows if row["recipe"] == name} for name in RECIPES}
        (_, head), *_ = filled = [(name, found) for name, found in of.items() if len(found) > 1]
        for name, found in filled:
            cells = [interval([row[key] for row in found.values()]) for key in SCORES]
            cells += [interval([head[s][key] - found[s][key] for s in found if s in head]) for key in SCORES]
            cells += [f"{np.mean([row[key] for row in found.values()]):,.{d}f}" for key, d in COSTS]
            print(f"| {kind} | {name} | {' | '.join(cells)} |")
    floors = {kind: {line["seed"]: line["floor"] for line in lines if line["client"] == kind} for kind in MAKERS}
    print("\nfloors: " + ", ".join(f"{kind} {interval([*of.values()])}" for kind, of in floors.items() if of))


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--client", choices=tuple(MAKERS), default="paper")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0, 20.0])
    parser.add_argument("--recipes", nargs="+", choices=tuple(RECIPES), default=list(RECIPES))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        add_lines(given.out, given.root, given.client, given.seeds, given.seconds, given.recipes)
    print_table(read(given.out))


if __name__ == "__main__":
    main()
