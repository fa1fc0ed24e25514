"""Which constants of the span attack matter: each halved and doubled, on clients of held-out images.

`python -m tests.benchmarks.sensitivity --root DATA`, DATA with a folder for each data set, prints a line of CSV for
each constant that takes part in attacks on a kind of client: what comes back as it is, halved and doubled. Counts stay
at least 1, shares at most 0.99; a tuple is scaled as a whole. Other seeds of the attack show what chance changes.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from attacks import get_attack
from attacks.interface.knowledge import Knowledge
from attacks.interface.torch_tools import torch_generator
from attacks.span import thresholds
from attacks.span.search.candidates import SearchOptions
from attacks.update import intervals, spectrum
from clients.config import TrainingConfig
from clients.defenses.compression import Quantization, TopK
from clients.defenses.filters import Noise
from tests.benchmarks.held_out import DATA, Client, Kind, Tally, make_client, mlp

FACTORS = (0.5, 2.0)
LARGEST_SHARE = 0.99
# constants of modules that decide what is counted or accepted; those of rounding and of iterations' ends are left out
OF_MODULES: dict[ModuleType, str] = {
    spectrum: "CLEAR_GAP SMALLEST_GAP NEAR_FLOOR ROUNDING IMAGE_FREE_SHARE REQUIRED_DROP MAX_ITERATIONS",
    intervals: "LARGEST_ONLY_RATIO GRID_TOLERANCE INWARD_SHARE TRACY_WIDOM_99 STARTING_SHRINKAGE SHRINKAGE_DECAY "
    "ENTRIES_PER_UNKNOWN STOP_STEP STOP_STEP_INTERVALS STOP_STEP_MATRIX RELATIVE_RIDGE INSIDE_WEIGHT HELD_OUT_SHARE "
    "REQUIRED_IMPROVEMENT",
}
Group = type[thresholds.Thresholds] | ModuleType | type[SearchOptions]
SEARCHING: tuple[Group, ...] = (thresholds.SEARCH, thresholds.DECOY, SearchOptions)
JUDGING: tuple[Group, ...] = (thresholds.EVIDENCE, thresholds.ACCEPTANCE, thresholds.CERTAINTY)
ZEROS: tuple[Group, ...] = (thresholds.SPARSITY, thresholds.DUAL)
# groups that no kind of client here uses: those of networks with convolutions
NOT_RUN = (
    thresholds.CONE,
    thresholds.CROWDED,
    thresholds.EXTREME,
    thresholds.FEATURE,
    thresholds.INVERSION,
    thresholds.FROZEN_BODY,
    thresholds.LAST_LAYER,
    thresholds.MAP_INVERSION,
    thresholds.ONE_HIDDEN,
    thresholds.OWN_UNITS,
    thresholds.MAP_KERNEL,
    thresholds.MAP_SEARCH,
    thresholds.MOMENTUM,
    thresholds.PATCHES,
    thresholds.PLACES,
    thresholds.TOKENS,
    thresholds.SINGLE_IMAGE,
)

LONG = TrainingConfig(epochs=10, batch_size=5, learning_rate=0.05, momentum=0.9)
SHORT = TrainingConfig(epochs=100, learning_rate=0.01)  # full batches: features hardly move
DECAYED = TrainingConfig(epochs=5, batch_size=4, learning_rate=0.05, weight_decay=1e-2)
KINDS: dict[Kind, tuple[Group, ...]] = {
    Kind("undefended", training=LONG): (*SEARCHING, *JUDGING, *ZEROS, spectrum),
    Kind("at rest", 60, mlp(512), SHORT): (thresholds.SEARCH, thresholds.DUAL),
    Kind("weight decay", training=DECAYED): (spectrum,),
    Kind("tanh", 10, mlp(512, activation="tanh")): (thresholds.DECOY, thresholds.ACCEPTANCE),
    Kind("noise 1 %", 10, defense=Noise(0.01)): (*JUDGING, thresholds.DECOY, thresholds.SPARSITY, spectrum),
    Kind("noise 3 %", 10, mlp(512), defense=Noise(0.03)): (thresholds.ACCEPTANCE, thresholds.FIT),
    Kind("three rounds", rounds=3): (thresholds.ACCEPTANCE,),
    Kind("8 bits, told", 5, defense=Quantization(8), told=Knowledge(quantization_bits=8, num_private=5)): (
        thresholds.DEFENSE,
        intervals,
    ),
    Kind("top half, told", 5, mlp(96), defense=TopK(0.5), told=Knowledge(kept_fraction=0.5)): (
        thresholds.DEFENSE,
        intervals,
        intervals,
    ),
}
SMALLER = {"cifar10": (0.5, 0.5), "tiny_imagenet": (0.3, 1.0)}  # images and width, where images are larger


@dataclass(frozen=True)
class Constant:
    """One constant, by where it stands."""

    group: Group
    name: str

    @property
    def label(self) -> str:
        return f"{self.group.__name__.rpartition('.')[2]}.{self.name}"

    @property
    def value(self) -> Any:
        return getattr(self.group, self.name)

    def scaled(self, factor: float) -> Any:
        value = self.value
        if isinstance(value, tuple):
            return tuple(part * factor for part in value)
        if isinstance(value, thresholds.Descent):
            return thresholds.Descent(max(1, round(value.steps * factor)), value.rate * factor)
        if isinstance(value, int):
            return max(1, round(value * factor))
        return min(LARGEST_SHARE, value * factor) if value < 1 else value * factor

    @contextmanager
    def set_to(self, value: Any) -> Iterator[None]:
        """With this value wherever a module of the attacks holds the constant under its name."""
        before = self.value
        holders: list[Any] = [self.group]
        if isinstance(self.group, ModuleType):
            modules = [module for name, module in sys.modules.items() if name.startswith("attacks.")]
            holders = [module for module in modules if getattr(module, self.name, None) is before]
        for holder in holders:
            setattr(holder, self.name, value)
        try:
            yield
        finally:
            for holder in holders:
                setattr(holder, self.name, before)


def constants_in(group: Group) -> list[Constant]:
    if isinstance(group, ModuleType):
        return [Constant(group, name) for name in OF_MODULES[group].split()]
    return [Constant(group, name) for name in group.__annotations__]


def attacked(clients: list[Client], told: Knowledge, seed: int = 0, **options: object) -> Tally:
    """What the attack makes of all these clients, with a seed of its own and with its options."""
    total = Tally()
    for client in clients:
        attack = get_attack("span", **options)
        found = attack.run(client.observation, told, torch_generator(seed, "attack"))
        total += Tally.of(client.private, found.images)
    return total


def varied(constant: Constant, factor: float, clients: list[Client], told: Knowledge) -> Tally:
    value = constant.scaled(factor)
    if constant.group is SearchOptions:
        return attacked(clients, told, **{constant.name: value})
    with constant.set_to(value):
        return attacked(clients, told)


def verdict(found: list[Tally], chance: list[Tally]) -> str:
    """What halving and doubling (`found`) does, beside what other seeds of the attack do (`chance`).

    "matters": more than one image more or fewer than with any of these seeds, or strays where none of them has so many.
    "changes": anything else that differs from the first seed."""
    for name in ("exact", "recovered", "strays"):
        usual, spare = [getattr(tally, name) for tally in chance], int(name != "strays")
        values = [getattr(tally, name) for tally in found]
        if max(values) > max(usual) + spare or (spare and min(values) < min(usual) - spare):
            return "matters"
    return "changes" if any(tally != chance[0] for tally in found) else ""


def print_lines(kind: Kind, data: str, root: Path, seeds: range, chosen: Sequence[str] = ()) -> None:
    """A line for every constant that takes part, or for those chosen: exact, recovered and stray images of the clients
    of these seeds."""
    fewer, narrower = SMALLER.get(data, (1.0, 1.0))
    width = int(narrower * kind.model.options["width"])
    small = replace(kind, images=int(fewer * kind.images), model=kind.model.with_options(width=width))
    made = [make_client(small, data, root, seed) for seed in seeds]
    images = f"{len(seeds)} x {small.images},{width}"
    chance = [attacked(made, kind.told, seed) for seed in range(3)]
    print(f'other seeds,,"{kind.name}",{data},{images},{",".join(map(str, chance))},', flush=True)
    for group in KINDS[kind]:
        for constant in (each for each in constants_in(group) if not chosen or each.label in chosen):
            half, double = (varied(constant, factor, made, kind.told) for factor in FACTORS)
            value = " ".join(map(str, constant.value)) if isinstance(constant.value, tuple) else constant.value
            result = verdict([half, double], chance)
            line = f'{constant.label},{value},"{kind.name}",{data},{images},{chance[0]},{half},{double},{result}'
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--first", type=int, default=100, help="seed of the first client")
    parser.add_argument("--data", nargs="*", default=DATA)
    parser.add_argument("--kinds", nargs="*", default=[kind.name for kind in KINDS])
    parser.add_argument("--constants", nargs="*", default=[], help="GROUP.name of those to vary; default: all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("constant,value,kind,data,clients x images,width,as it is (exact/recovered/strays),halved,doubled,result")
    for data in options.data:
        for kind in KINDS:
            if kind.name in options.kinds:
                seeds = range(options.first, options.first + options.clients)
                print_lines(kind, data, options.root, seeds, options.constants)


if __name__ == "__main__":
    main()
