"""One data owner's images left out layer by layer, with a network and an attack for each layer, and without either."""

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.seeding import derive_seed, torch_generator
from attacks.kernel.empirical import kernel_duals, kernel_regression
from attacks.ntk.attack import NTKAttack
from attacks.scoring.images import matched_l2
from clients.config import Count, Positive, Section, TrainingConfig
from clients.defenses.base import TrainingSet
from clients.defenses.prune_easiest import duals, without_easiest
from clients.local_update import centered
from clients.losses import accuracy
from clients.models import build_model
from clients.training import train
from simulator.paper.experiment import ExperimentRun
from simulator.paper.measures import floor_of
from simulator.scenario.scenario import Scenario
from simulator.tools.distillation import Owner

REFERENCE_STAGES = 20
RIDGE = 1e-5  # of kernel regression, as where distilled sets are judged


class OnionSettings(Section):
    """drop: images left out in each stage. until: images of the last stage. width_per_image: of both hidden layers.
    balanced: whether as many of each class are left out. underfit_loss: the loss at which training stops when all
    stages are gone through once more, underfit. draws: random subsets to compare with. reference_images: images of the
    same onion by |α| at infinite width, which needs neither training nor an attack. iterations, learning_rate: of the
    attack."""

    drop: Count = 20
    until: Count = 100
    width_per_image: Positive = 8.0
    balanced: bool = True
    underfit_loss: Positive | None = None
    draws: Count = 3
    reference_images: Count = 500
    iterations: Count = 30_000
    learning_rate: Positive = 0.02

    def stages(self, images: int) -> list[int]:
        return list(range(images, self.until - 1, -self.drop))


class Peeling:
    """One data owner's images, left out layer by layer; the network's width follows their number (appendix H.6)."""

    def __init__(
        self, owner: Owner, settings: OnionSettings, training: TrainingConfig, run: ExperimentRun, regime: str
    ):
        self.owner, self.settings, self.training = owner, settings, training
        self.stages = settings.stages(len(owner.images))
        self.groups = owner.groups
        test_images, self.test_labels = owner.data.test()
        self.test_images = centered(test_images, owner.data.pixel_mean)
        self.report = lambda what, done: run.report(f"seed {owner.scenario.seed}, {regime}: {what}", done, 100)

    def table(self) -> pd.DataFrame:
        """A row per stage and way to choose: `chosen`, `num_private`, `accuracy`, `minority` (share of the smaller
        class); for `easiest` also `l2_mean`, `l2_easiest` (of those left out next), `l2_before` (of these images,
        one stage before), `floor_l2_mean`, `dual_rank`."""
        rows = self.easiest()
        for draw in range(self.settings.draws):
            rows += self.ranked(f"random {draw}", partial(self.random, draw))
        rows += self.ranked("duals", self.largest_duals)
        frame = pd.DataFrame(rows)
        return frame.assign(chosen=frame.chosen.str.partition(" ")[0])

    def easiest(self) -> list[dict[str, object]]:
        """A row per stage; after each, the images that the attack reconstructs best are left out.

        How well the other images were reconstructed before is measured on a second network. On the first one they were
        chosen because they came out badly, and would come out better a second time whatever is left out.
        """
        kept, rows, before = torch.arange(len(self.owner.images)), [], math.nan
        for stage, count in enumerate(self.stages):
            self.report(f"{count} images", 100 * stage // len(self.stages))
            initial, model = self.trained(kept)
            l2, floor = self.attacked(kept, initial, model)
            size = self.largest_duals(kept)
            order = l2.sort().values[: self.settings.drop]
            rank = pd.Series(l2.numpy()).corr(pd.Series(size.numpy()), method="spearman")
            scores = {"l2_mean": float(l2.mean()), "l2_easiest": float(order.mean()), "l2_before": before}
            row = self.row("easiest", kept, model)
            rows.append(row | scores | {"floor_l2_mean": floor, "dual_rank": float(rank)})
            left = self.without(kept, -l2)
            if count != self.stages[-1]:
                again, _ = self.attacked(kept, *self.trained(kept, "second onion"))
                before = float(again[torch.isin(kept, left)].mean())
            kept = left
        return rows

    def ranked(self, chosen: str, rank: Callable[[Tensor], Tensor]) -> list[dict[str, object]]:
        """A row per stage after the first; the same number of images is left out by another rank, without an attack."""
        kept, rows = torch.arange(len(self.owner.images)), []
        for _ in self.stages[1:]:
            kept = self.without(kept, rank(kept))
            rows.append(self.row(chosen, kept, self.trained(kept)[1]))
        return rows

    def without(self, kept: Tensor, ease: Tensor) -> Tensor:
        groups = self.groups[kept] if self.settings.balanced else None
        return kept[without_easiest(ease, self.settings.drop, groups)]

    def random(self, draw: int, kept: Tensor) -> Tensor:
        return torch.rand(len(kept), generator=torch_generator(self.owner.scenario.seed, f"onion/{draw}", len(kept)))

    def largest_duals(self, kept: Tensor) -> Tensor:
        """The rank of the defense `prune_easiest`."""
        data = TrainingSet(self.owner.images[kept], self.owner.targets[kept])
        return duals(self.network(len(kept)), data).norm(dim=1)

    def network(self, count: int, purpose: str = "onion") -> nn.Module:
        scenario = self.owner.scenario
        config = scenario.model.with_options(width=max(1, round(self.settings.width_per_image * count)))
        seed = derive_seed(scenario.seed, purpose, count)
        return build_model(config, self.owner.data.shape, self.owner.targets.shape[1], seed)

    def trained(self, kept: Tensor, purpose: str = "onion") -> tuple[dict[str, Tensor], nn.Module]:
        """(θ₀, the network at θ_f); every way to choose starts a stage from the same θ₀."""
        model = self.network(len(kept), purpose)
        initial = deepcopy(model.state_dict())
        train(model, self.owner.images[kept], self.owner.targets[kept], self.training, torch.Generator())
        return initial, model

    def attacked(self, kept: Tensor, initial: dict[str, Tensor], model: nn.Module) -> tuple[Tensor, float]:
        """((N,) L2 of the reconstruction curve, the uninformed baseline as of `floor_of`)."""
        data, private = self.owner.data, self.owner.images[kept]
        observation = Observation(model, ((initial, model.state_dict()),), data.shape)
        knowledge = Knowledge(num_private=len(kept), pixel_mean=data.pixel_mean)
        attack = NTKAttack(iterations=self.settings.iterations, learning_rate=self.settings.learning_rate)
        found = attack.run(observation, knowledge, torch_generator(self.owner.scenario.seed, "onion", len(kept)))
        mean = torch.tensor(data.pixel_mean).view(1, -1, 1, 1)
        l2, _ = matched_l2(private + mean, found.pixels().float())
        return torch.from_numpy(l2), floor_of(private + mean, data.public()[0], len(found.images))

    def row(self, chosen: str, kept: Tensor, model: nn.Module) -> dict[str, object]:
        with torch.no_grad():
            outputs = model(self.test_images)
        sizes = self.groups[kept].bincount(minlength=int(self.groups.max()) + 1)
        return {
            "chosen": chosen,
            "num_private": len(kept),
            "accuracy": accuracy(outputs, self.test_labels),
            "minority": float(sizes.min()) / len(kept),
        }


def at_infinite_width(scenario: Scenario, settings: OnionSettings) -> pd.DataFrame:
    """Accuracy of kernel regression at infinite width, the largest |α| = |K⁻¹y| left out in turn, and random ones.

    A twentieth of `reference_images` is left out in each stage, down to a fifth of them.
    """
    owner = Owner.of(scenario.with_images(settings.reference_images))
    images, targets, groups = owner.images.double(), owner.targets.double(), owner.groups
    test_images, labels = owner.data.test()
    kernel = owner.kernel(images)
    cross = owner.kernel(centered(test_images, owner.data.pixel_mean).double(), images)
    drop = max(1, len(images) // REFERENCE_STAGES)

    def peel(chosen: str, rank: Callable[[Tensor], Tensor]) -> list[dict[str, object]]:
        kept, rows = torch.arange(len(images)), []
        while len(kept) - drop >= len(images) // 5:
            kept = kept[without_easiest(rank(kept), drop, groups[kept] if settings.balanced else None)]
            predicted = kernel_regression(kernel[kept][:, kept], targets[kept], cross[:, kept], RIDGE)
            rows.append({"chosen": chosen, "num_private": len(kept), "accuracy": accuracy(predicted, labels)})
        return rows

    generator = torch_generator(scenario.seed, "infinite onion")
    rows = peel("duals", lambda kept: kernel_duals(kernel[kept][:, kept], targets[kept], RIDGE).norm(dim=1))
    for _ in range(settings.draws):
        rows += peel("random", lambda kept: torch.rand(len(kept), generator=generator))
    return pd.DataFrame(rows)
