"""What a reader of Loo et al. (2024) looks for first: reconstruction curves in the settings of their figure 2, for
`ntk` as published, `ntk` as it is now and `span`; and what the published recipe finds, iteration by iteration, with
each of its kernels.

`python -m tests.benchmarks.headline --root DATA --out FILE --part curves` adds a line of JSON to FILE for each client
and attack that is not in it yet, smallest clients first; `--part recipe` follows 80,000 iterations of the published
recipe. `--show FIGURE` draws what FILE holds and prints its table.

Clients have as many images of either group (MNIST: odd, even; CIFAR-10: animals, vehicles), a network with two hidden
layers and one output, and train on all images at once, momentum 0.9, down to a squared error of 1e-6.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attacks import Knowledge, Observation, get_attack
from attacks.interface.torch_tools import choose_device, torch_generator
from attacks.ntk.adam_graph import GraphedAdam
from attacks.scoring.images import matched_l2
from clients.training import encode_targets
from simulator.evaluation.attack_run import work_seconds
from simulator.reports.drawing import COLOURS, themed
from tests.benchmarks.held_out import Kind, draw_images, mlp, observe, pixel_mean
from tests.benchmarks.ntk_recipes import PAPER, PUBLISHED, read

VEHICLES = (0, 1, 8, 9)  # airplane, automobile, ship, truck
SIZES, WIDTHS = (20, 50, 100, 200), (1024, 2048)
DRAWN = 3  # times as many images are drawn as a client has, so that either group suffices
ITERATIONS = {"ntk, published": 20_000, "ntk, now": 10_000}  # in the curves: as many seconds
ATTACKS = (*ITERATIONS, "span")
INITIAL, HYBRID = "ntk, published, initial kernel", "ntk, published, both kernels"
NTK: dict[str, dict] = {"ntk, published": PUBLISHED, "ntk, now": {}}
NTK |= {INITIAL: PUBLISHED | {"kernel": "initial"}, HYBRID: PUBLISHED | {"kernel": "hybrid"}}
# iterations that are followed; 80,000 is the paper's number
RECIPE = {"ntk, published": 80_000, "ntk, now": 4_000, INITIAL: 80_000, HYBRID: 80_000}
RECIPE_SEEDS = (0, 1, 2)
WITHIN = (1.0, 2.0)  # L2 distances at which an image counts as found; 2 is 23 dB of MNIST
# iterations after which candidates are looked at: 60 that grow alike, and the last of either recipe
LOOKS = {*np.geomspace(10, 80_000, 60).astype(int).tolist(), *RECIPE.values()}


@dataclass(frozen=True, order=True)
class Setting:
    """A client: `images` of a data set, the width of its network, and the seed of images, network and attack."""

    images: int
    width: int
    data: str
    seed: int

    def client(self, root: Path) -> tuple[Observation, Tensor, Knowledge]:
        """(what a server sees, private images (N, C, H, W), what its attacker is told)."""
        folder = root / self.data
        images, labels = draw_images(self.data, folder, DRAWN * self.images, self.seed)
        groups = labels % 2 if self.data == "mnist" else torch.isin(labels, torch.tensor(VEHICLES)).long()
        chosen = torch.cat([torch.nonzero(groups == group).flatten()[: self.images // 2] for group in (0, 1)])
        kind = Kind("headline", self.images, mlp(self.width), PAPER, classes=1, device=str(choose_device("auto")))
        targets = encode_targets(groups[chosen], 2, 1, "mse")
        told = Knowledge(num_private=self.images, pixel_mean=pixel_mean(self.data, folder))
        return observe(kind, images[chosen], targets, self.seed), images[chosen], told


@dataclass
class Watched(GraphedAdam):
    """Adam of `ntk` that notes, after the iterations of `LOOKS`, how long it has taken and how far the images are."""

    private: Tensor
    notes: list[dict] = field(default_factory=list)
    done: int = 0
    spent: float = 0.0
    began: float = 0.0

    def begin(self, backward: Callable, parameters: Sequence[Tensor], rates: Sequence[float]) -> "Watched":
        """Stand in for the constructor that the attack calls."""
        GraphedAdam.__init__(self, backward, parameters, rates)
        self.began = work_seconds()
        return self

    def step(self, beta: float, decay: float) -> None:
        super().step(beta, decay)
        self.done += 1
        if self.done in LOOKS:
            self.spent += work_seconds() - self.began
            images = self.parameters[0].detach().cpu()
            found = {f"within_{bound:g}": within(self.private, images, bound) for bound in WITHIN}
            self.notes.append({"iteration": self.done, "seconds": round(self.spent, 2), **found})
            self.began = work_seconds()


def card() -> str:
    """What `device: auto` computes on."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def within(private: Tensor, found: Tensor, bound: float) -> int:
    """How many private images have a candidate of their own within an L2 distance."""
    return int((matched_l2(private, found)[0] <= bound).sum())


def curve(private: Tensor, found: Tensor) -> list[float]:
    """L2 of every private image to its candidate, nearest first. Too few candidates are filled up with the mean image,
    which is all that is known of the others."""
    unknown = torch.zeros_like(private[: max(0, len(private) - len(found))])
    return sorted(round(float(l2), 3) for l2 in matched_l2(private, torch.cat([found, unknown]))[0])


def attack(name: str, client: tuple[Observation, Tensor, Knowledge], seed: int) -> dict:
    """A line of the curves."""
    observation, private, told = client
    tool = get_attack("ntk", iterations=ITERATIONS[name], **NTK[name]) if name in NTK else get_attack(name)
    start = work_seconds()
    found = tool.run(observation, told, torch_generator(seed, "headline")).images
    return {"seconds": round(work_seconds() - start, 1), "l2": curve(private, found), "returned": len(found)}


def follow(name: str, client: tuple[Observation, Tensor, Knowledge], seed: int) -> dict:
    """A line of the recipe: what `Watched` notes."""
    observation, private, told = client
    watch = Watched(private)
    tool = get_attack("ntk", iterations=RECIPE[name], **NTK[name])
    with mock.patch("attacks.ntk.attack.GraphedAdam", watch.begin):
        tool.run(observation, told, torch_generator(seed, "headline"))
    return {"notes": watch.notes}


def follow_span(client: tuple[Observation, Tensor, Knowledge], seed: int) -> dict:
    line = attack("span", client, seed)
    found = {f"within_{bound:g}": int(np.sum(np.array(line["l2"]) <= bound)) for bound in WITHIN}
    return {"notes": [{"iteration": 0, "seconds": line["seconds"], **found}]}


def add_lines(out: Path, root: Path, part: str, settings: Sequence[Setting], names: Sequence[str]) -> None:
    done = {(line["part"], *(line[key] for key in Setting.__dataclass_fields__), line["attack"]) for line in read(out)}
    for setting in settings:
        missing = [name for name in names if (part, *vars(setting).values(), name) not in done]
        client = setting.client(root) if missing else None
        for name in missing:
            assert client is not None
            if part == "curves":
                found = attack(name, client, setting.seed)
            else:
                found = follow_span(client, setting.seed) if name == "span" else follow(name, client, setting.seed)
            line = {"part": part, **vars(setting), "attack": name, **found, "device": card()}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def table(lines: list[dict]) -> str:
    """How many images each attack has within `WITHIN`, and its processor seconds where they were measured, by client;
    means over seeds, whose number stands in front where there are several."""
    rows = []
    for line in lines:
        found = {f"{bound:g}": float(np.mean(np.array(line["l2"]) <= bound)) for bound in WITHIN}
        rows.append({**{key: line[key] for key in ("data", "width", "images", "attack", "seconds")}, **found})
    cells: dict[tuple, dict[str, str]] = {}
    for (*client, name), group in pd.DataFrame(rows).groupby(["data", "width", "images", "attack"]):
        seeds = f"{len(group)} clients: " if len(group) > 1 else ""
        seconds = group.seconds.astype(float).mean()
        took = "" if np.isnan(seconds) else f", {seconds:,.0f} s"
        shares = " / ".join(f"{group[f'{bound:g}'].mean():.0%}" for bound in WITHIN)
        cells.setdefault(tuple(client), {})[name] = seeds + shares + took
    head = ["data", "width", "images", *(name for name in ATTACKS if any(name in row for row in cells.values()))]
    body = [[*map(str, client), *(row.get(name, "–") for name in head[3:])] for client, row in cells.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))


def draw(lines: list[dict], path: Path) -> None:
    """Curves, a row of panels for each data set and width; below, images found against iterations and seconds."""
    themed()
    curves, notes = ([line for line in lines if line["part"] == part] for part in ("curves", "recipe"))
    rows = sorted({(line["data"] != "mnist", line["data"], line["width"]) for line in curves})
    height = len(rows) + 1
    figure, axes = plt.subplots(height, len(SIZES), figsize=(2.9 * len(SIZES), 2.3 * height), squeeze=False)
    colours = dict(zip((*ATTACKS, INITIAL, HYBRID), COLOURS, strict=False))
    for (_, data, width), row in zip(rows, axes[:-1], strict=True):
        for size, axis in zip(SIZES, row, strict=True):
            own = [line for line in curves if (line["data"], line["width"], line["images"]) == (data, width, size)]
            for line in own:
                axis.plot(range(1, size + 1), line["l2"], color=colours[line["attack"]], linewidth=1.5)
            axis.set(title=f"{data}, width {width}, {size} images")
            axis.set_ylim(-0.04 * axis.get_ylim()[1])  # exact images lie on the line of 0, which the frame would hide
            axis.set_visible(bool(own))
        row[0].set_ylabel("L2, easiest image first")
    devices = sorted({line["device"] for line in notes})
    timed = devices[0] if devices else ""  # seconds of one machine alone; capitals come first, a card before a CPU
    for axis, key in zip(axes[-1], ("iteration", "seconds"), strict=False):
        for line in notes:
            found = pd.DataFrame(line["notes"])
            if key == "seconds" and line["device"] != timed:
                continue
            if len(found) == 1 and key == "seconds":
                axis.plot(found[key], found["within_2"], "*", color=colours[line["attack"]], markersize=9)
            elif len(found) > 1:
                axis.plot(found[key], found["within_2"], color=colours[line["attack"]], linewidth=1.2)
        label = key if key == "iteration" else f"seconds, {timed}"
        axis.set(xscale="log", ylim=(0, 21), title="mnist, width 1024, 20 images", xlabel=label)
    axes[-1][0].set_ylabel("images within L2 2")
    for axis in axes[-1][2:]:
        axis.set_axis_off()
    for name in colours:
        axes[-1][2].plot([], [], color=colours[name], label=name)
    axes[-1][2].legend(loc="center", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=("curves", "recipe"), default="curves")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data", nargs="+", default=["mnist", "cifar10"])
    parser.add_argument("--attacks", nargs="+", help="default: all that the part has")
    parser.add_argument("--show", type=Path)
    given = parser.parse_args()
    if given.show:
        draw(read(given.out), given.show)
        print(table([line for line in read(given.out) if line["part"] == "curves"]))
        return
    if given.part == "recipe":
        settings = [Setting(20, 1024, "mnist", seed) for seed in RECIPE_SEEDS]
        names = (*RECIPE, "span")
    else:
        names = ATTACKS
        settings = [Setting(*values) for values in product(SIZES, WIDTHS, given.data, given.seeds)]
        settings.sort(key=lambda setting: setting.images * setting.width**2)  # as they cost
    add_lines(given.out, given.root, given.part, settings, given.attacks or names)


if __name__ == "__main__":
    main()
