"""`fedspill distill`: distill a data set, and measure the distilled images (Loo et al. 2024, table 1)."""

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attacks import InputError, torch_generator
from attacks.base import Progress, silent
from attacks.interface.normalization import Normalization
from attacks.interface.torch_tools import derive_seed
from attacks.kernel.infinite import InfiniteNTK
from attacks.scoring.images import distances
from clients.data.partition import FederatedData, split_data
from clients.distillation import Distilled, DistillOptions, distill
from clients.distillation.evaluation import Learners, named_kernel
from clients.models import build_model, option_values
from clients.training import encode_targets
from simulator.reports.drawing import image_sheet
from simulator.results.disk import make_out, write_atomically
from simulator.run.display import ShowProgress, loss_bar
from simulator.scenario.scenario import Scenario, apply_overrides, validate
from simulator.scenario.yaml_source import YamlSource

TEST_IMAGES = 2_000
WIDTH = 4_096
SECTIONS = ("data", "model")


def distill_scenario(overrides: list[str], train: int, seed: int) -> Scenario:
    """Make a scenario of one data owner with `train` images and an MLP of width 4096. overrides: "data.…=…" and
    "model.…=…" strings. Raise InputError for a network without a known infinite-width kernel."""
    for override in overrides:
        if override.split(".")[0].strip() not in SECTIONS:
            raise InputError(f"--set {override}: distill reads data.KEY and model.KEY only")
    source = YamlSource(
        {
            "name": "distill",
            "seed": seed,
            "data": {"test": TEST_IMAGES},
            "partition": {"kind": "exact", "images": train},
            "federation": {"clients": 1},
            "training": {"loss": "mse"},
        },
        {("partition", "images"): "--train", ("seed",): "--seed"},
    )
    apply_overrides(source, overrides)
    asked = source.data.get("model", {})
    known = {"name": "mlp", "activation": "relu", "output_activation": "linear"}
    if isinstance(asked, dict) and any(asked.get(key, value) != value for key, value in known.items()):
        raise InputError("distill knows the infinite-width kernel of ReLU MLPs: leave model.name and activations alone")
    scenario = validate(source)
    wide = scenario.model.with_options(**{"width": WIDTH, **scenario.model.options})
    return scenario.model_copy(update={"model": wide})


@dataclass(frozen=True, eq=False)
class Owner:
    """The data owner.

    images: (N, C, H, W), in the model's input space.
    targets: (N, K), as for MSE.
    """

    scenario: Scenario
    data: FederatedData
    images: Tensor
    targets: Tensor

    @classmethod
    def of(cls, scenario: Scenario) -> "Owner":
        data = split_data(scenario.data, scenario.partition, scenario.federation.clients, scenario.seed)
        images, labels = data.client(0)
        outputs = scenario.model.outputs or (1 if len(data.task.groups) == 2 else len(data.task.groups))
        targets = encode_targets(labels, len(data.task.groups), outputs, "mse", source=f"data {scenario.data.name!r}")
        return cls(scenario, data, data.normalization.inputs(images), targets)

    def on(self, device: torch.device) -> "Owner":
        """Move images and targets to `device`, where networks are then made, too."""
        return dataclasses.replace(self, images=self.images.to(device), targets=self.targets.to(device))

    @property
    def groups(self) -> Tensor:
        """(N,) group indices, read off the targets."""
        return self.targets.argmax(1) if self.targets.shape[1] > 1 else (self.targets[:, 0] > 0).long()

    @property
    def kernel(self) -> InfiniteNTK:
        options = option_values(self.scenario.model)
        return InfiniteNTK(**{name: options[name] for name in ("depth", "bias", "parameterization")})

    def kernel_named(self, name: str) -> InfiniteNTK:
        """Return the kernel `limit` (that of `kernel`), `authors` or `width_matched`."""
        return named_kernel(name, self.kernel, option_values(self.scenario.model)["width"])

    def network(self, purpose: str) -> nn.Module:
        """Build a network at its initialization; each purpose has weights of its own."""
        seed = derive_seed(self.scenario.seed, purpose)
        return build_model(self.scenario.model, self.data.shape, self.targets.shape[1], seed).to(self.images.device)

    def distill(self, size: int, options: DistillOptions, progress: Progress = silent) -> Distilled:
        generator = torch_generator(self.scenario.seed, "distillation")
        network = self.network("distillation") if options.method == "rkip_finite" else None
        return distill(self.images, self.targets, size, generator, options, network, progress=progress)

    def learners(self, kernel: InfiniteNTK, max_steps: int, ridge: float = 1e-5) -> Learners:
        """kernel: of the learner of infinite width. max_steps, ridge: as `Learners` has them."""
        images, labels = self.data.test()
        inputs = self.data.normalization.inputs(images)
        return Learners(self.network("evaluation"), kernel, inputs, labels, ridge, max_steps)

    def random_subset(self, size: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randperm(len(self.images), generator=torch_generator(self.scenario.seed, "subset"))[:size]
        return self.images[chosen], self.targets[chosen]


def run_distillation(
    owner: Owner, options: DistillOptions, size: int, out: Path, report: ShowProgress, *, max_steps: int
) -> dict[str, Any]:
    """Distill, evaluate, write distill.json, distilled.npz and distilled.png into `out`; return the facts of the first.
    options: with the kernel of the learner of infinite width, too. max_steps: of standard training, for each set."""
    if not 1 <= size <= len(owner.images):
        raise InputError(f"--size is {size}, it has to lie between 1 and --train, {len(owner.images)}")
    start = time.perf_counter()
    found = owner.distill(size, options, loss_bar(report, options.method))
    distilled_after = time.perf_counter() - start
    sets = {
        "accuracy": (found.images, found.targets),
        "accuracy_full": (owner.images, owner.targets),
        "accuracy_random": owner.random_subset(size),
    }
    accuracies, training = evaluate(owner.learners(options.kernel, max_steps), sets, report)
    evaluated_in = time.perf_counter() - start - distilled_after
    seconds = {"distillation": round(distilled_after, 2), "evaluation": round(evaluated_in, 2)}
    facts = {**accuracies, "standard_training": training, **describe(owner, options, found), "seconds": seconds}
    write(out, found, owner.data.normalization, facts)
    return facts


def describe(owner: Owner, options: DistillOptions, found: Distilled) -> dict[str, Any]:
    """Return the facts of a distillation beside its accuracies: distances to private images, sizes and settings."""
    nearest = distances(owner.images, found.images).min(0).values
    return {
        "nearest_private_l2": {"min": round(float(nearest.min()), 4), "median": round(float(nearest.median()), 4)},
        "train": len(owner.images),
        "size": len(found.images),
        "test": len(owner.data.test_indices),
        "loss": [found.trace[0][1], found.trace[-1][1]],
        "settings": {
            "seed": owner.scenario.seed,
            **dataclasses.asdict(options),
            "iterations": options.steps,
            **{section: getattr(owner.scenario, section).model_dump(mode="json") for section in SECTIONS},
        },
    }


def evaluate(
    learners: Learners, sets: dict[str, tuple[Tensor, Tensor]], report: ShowProgress
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Return the accuracies of every set by learner, and facts of its standard training."""
    accuracies: dict[str, dict[str, float]] = {}
    training: dict[str, dict[str, float]] = {}
    for i, (name, (images, targets)) in enumerate(sets.items()):
        report(f"evaluating {len(images)} images", i, len(sets))
        trained = learners.standard(images, targets)
        accuracies[name] = {
            "infinite_width": round(learners.infinite_width(images, targets), 4),
            "standard": round(trained.accuracy, 4),
            "linearized": round(learners.linearized(images, targets), 4),
        }
        training[name] = dataclasses.asdict(trained)
    return accuracies, training


def accuracy_lines(facts: dict[str, Any]) -> list[str]:
    """Return the table for the screen: a line per set, a column per learner, and the end of standard training."""
    learners = list(facts["accuracy"])
    lines = ["test accuracy  " + "".join(f"{learner:>16}" for learner in learners)]
    for key, name in (("accuracy", "distilled"), ("accuracy_full", "all images"), ("accuracy_random", "random subset")):
        run = facts["standard_training"][key]
        ended = "step limit" if run["steps"] >= run["limit"] else "trained"
        cells = "".join(f"{facts[key][learner]:>16.3f}" for learner in learners)
        lines.append(f"{name:<15}{cells}   {ended}: {run['steps']} steps, MSE {run['mse']:.1e}")
    return lines


def write(out: Path, found: Distilled, normalization: Normalization, facts: dict[str, Any]) -> None:
    """Write the files. distilled.npz: `images` in the model's input space, `targets`, and the `pixel_mean` and
    `pixel_std` (empty if nothing is divided) that make them pixels."""
    make_out(out)
    scale = {"pixel_mean": np.array(normalization.mean), "pixel_std": np.array(normalization.std)}
    arrays = {"images": found.images.numpy(), "targets": found.targets.numpy(), **scale}
    np.savez_compressed(out / "distilled.npz", allow_pickle=False, **arrays)
    pixels = normalization.pixels(found.images).clamp(0, 1)
    titles = [f"{row[0]:+.2f}" if len(row) == 1 else str(row.argmax().item()) for row in found.targets]
    image_sheet(pixels, titles, out / "distilled.png")
    write_atomically(out / "distill.json", json.dumps(facts, indent=1) + "\n")
