"""Figures 6 and 21: leave out the images that were reconstructed best, train again, and reconstruct the next ones."""

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor, nn

from attacks import get_attack
from attacks.interface.errors import InputError, counted
from attacks.interface.knowledge import Knowledge
from attacks.interface.observation import Observation
from attacks.interface.torch_tools import choose_device, derive_seed, torch_generator
from attacks.kernel.empirical import kernel_duals, kernel_regression
from attacks.scoring.images import matched_l2
from clients.config import Count, Positive, Section, TrainingConfig
from clients.defenses.base import TrainingSet
from clients.defenses.training_data import duals, without_easiest
from clients.models import build_model
from clients.training import accuracy, planned_steps, train
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, cell_experiment, seconds_per_step
from simulator.paper.measures import draw_lines, floor_of, spearman
from simulator.scenario.scenario import Cell, Scenario
from simulator.tools.distillation import Owner

FITTED, UNDERFIT, INFINITE = "fitted", "underfit", "infinite width"  # regimes
REFERENCE_STAGES = 20  # at infinite width
RIDGE = 1e-5  # of kernel regression, as for distilled sets, in units of the kernel's mean diagonal


class OnionSettings(Section):
    """The section `settings` of the experiment's file.

    drop: images left out in each stage.
    until: images of the last stage.
    width_per_image: of both hidden layers.
    balanced: whether the same number is left out of each class.
    underfit_loss: where training stops in a second pass through all stages; None for no second pass.
    draws: random subsets to compare with.
    reference_images: images of the onion at infinite width, which |α| peels without training or attack.
    iterations, learning_rate, attack: options of the attack, `attack` all further ones.
    """

    drop: Count = 20
    until: Count = 100
    width_per_image: Positive = 8.0
    balanced: bool = True
    underfit_loss: Positive | None = None
    draws: Count = 3
    reference_images: Count = 500
    iterations: Count = 30_000
    learning_rate: Positive = 0.02
    attack: dict[str, Any] = Field(default_factory=dict)

    def stages(self, images: int) -> list[int]:
        """Return the number of images of each stage. Raise InputError if there is only one stage."""
        found = list(range(images, self.until - 1, -self.drop))
        if len(found) < 2:
            raise InputError(f"{images} images, {self.drop} less in each stage, until {self.until}: only one stage")
        return found


class Peeling:
    """Leaves out one owner's images layer by layer; the network's width is proportional to their number (H.6)."""

    def __init__(self, owner: Owner, settings: OnionSettings, training: TrainingConfig):
        self.owner, self.settings, self.training = owner, settings, training
        self.stages = settings.stages(len(owner.images))
        self.groups, self.device = owner.groups, choose_device("auto")
        test_images, self.test_labels = owner.data.test()
        self.test_images = owner.data.normalization.inputs(test_images)

    def table(self) -> pd.DataFrame:
        """Return a row per stage and way to choose: `chosen`, `num_private`, `accuracy`, `minority` (share of the
        smaller class); for `easiest` also `l2_mean`, `l2_easiest` (of those left out next), `l2_before` (of these
        images, one stage before), `floor_l2_mean`, `dual_rank`."""
        rows = self.easiest()
        for draw in range(self.settings.draws):
            rows += self.ranked(f"random {draw}", partial(self.random, draw))
        rows += self.ranked("duals", self.dual_norms)
        frame = pd.DataFrame(rows)
        return frame.assign(chosen=frame.chosen.str.partition(" ")[0])

    def easiest(self) -> list[dict[str, object]]:
        """Return a row per stage. After each, the images that the attack reconstructs best are left out.

        `l2_before` of the images that stay is measured on a second network. On the first one they stay because they
        came out badly, and would come out better a second time whatever is left out (regression to the mean).
        """
        kept, rows, before = torch.arange(len(self.owner.images)), [], math.nan
        for count in self.stages:
            initial, model = self.trained(kept)
            l2, floor = self.attacked(kept, initial, model)
            size = self.dual_norms(kept)
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
        """Return a row per stage after the first, with as many images left out, by `rank` and without an attack."""
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

    def dual_norms(self, kept: Tensor) -> Tensor:
        """Return |α| (N,) of the images `kept`, by which the defense `prune_easiest` ranks them."""
        data = TrainingSet(self.owner.images[kept].to(self.device), self.owner.targets[kept].to(self.device))
        return duals(self.network(len(kept)).to(self.device), data).norm(dim=1).cpu()

    def network(self, count: int, purpose: str = "onion") -> nn.Module:
        scenario = self.owner.scenario
        config = scenario.model.with_options(width=max(1, round(self.settings.width_per_image * count)))
        seed = derive_seed(scenario.seed, purpose, count)
        return build_model(config, self.owner.data.shape, self.owner.targets.shape[1], seed)

    def trained(self, kept: Tensor, purpose: str = "onion") -> tuple[dict[str, Tensor], nn.Module]:
        """Train on the images `kept`; return (θ₀, the network at θ_f). θ₀ is the same for every way to choose them."""
        model = self.network(len(kept), purpose)
        initial = deepcopy(model.state_dict())
        images, targets = self.owner.images[kept], self.owner.targets[kept]
        train(model.to(self.device), images.to(self.device), targets.to(self.device), self.training, torch.Generator())
        return initial, model.cpu()

    def attacked(self, kept: Tensor, initial: dict[str, Tensor], model: nn.Module) -> tuple[Tensor, float]:
        """Attack a network; return (L2 of each image `kept` to its reconstruction, (N,), the floor of `floor_of`)."""
        data, private = self.owner.data, self.owner.images[kept]
        observation = Observation(model, ((initial, model.state_dict()),), data.shape)
        mean, std = data.normalization.mean, data.normalization.std or None
        knowledge = Knowledge(len(kept), pixel_mean=mean, pixel_std=std)
        options = {"iterations": self.settings.iterations, "learning_rate": self.settings.learning_rate}
        attack = get_attack("ntk", **options, **self.settings.attack)
        found = attack.run(observation, knowledge, torch_generator(self.owner.scenario.seed, "onion", len(kept)))
        pixels = data.normalization.pixels(private)
        l2, _ = matched_l2(pixels, found.pixels().float())
        return torch.from_numpy(l2), floor_of(pixels, data.public()[0], len(found.images))

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
    """Measure the accuracy of kernel regression at infinite width after each stage, by |α| = |K⁻¹y| and at random.

    A twentieth of `reference_images` is left out in each stage, down to a fifth of them.
    """
    owner = Owner.of(scenario.with_images(settings.reference_images)).on(choose_device("auto"))
    images, targets, groups = owner.images.double(), owner.targets.double(), owner.groups.cpu()
    test_images, labels = owner.data.test()
    kernel = owner.kernel(images)
    cross = owner.kernel(owner.data.normalization.inputs(test_images).to(images), images)
    drop = max(1, len(images) // REFERENCE_STAGES)

    def peel(chosen: str, rank: Callable[[Tensor], Tensor]) -> list[dict[str, object]]:
        kept, rows = torch.arange(len(images)), []
        while len(kept) - drop >= len(images) // 5:
            kept = kept[without_easiest(rank(kept), drop, groups[kept] if settings.balanced else None)]
            predicted = kernel_regression(kernel[kept][:, kept], targets[kept], cross[:, kept], RIDGE)
            rows.append({"chosen": chosen, "num_private": len(kept), "accuracy": accuracy(predicted.cpu(), labels)})
        return rows

    generator = torch_generator(scenario.seed, "infinite onion")
    rows = peel("duals", lambda kept: kernel_duals(kernel[kept][:, kept], targets[kept], RIDGE).norm(dim=1).cpu())
    for _ in range(settings.draws):
        rows += peel("random", lambda kept: torch.rand(len(kept), generator=generator))
    return pd.DataFrame(rows)


def cost(run: ExperimentRun, settings: OnionSettings) -> float:
    """Return the seconds if each network took as long as the largest; print how many networks and attacks there are."""
    scenario = run.cells[0].scenario
    owner, training = Owner.of(scenario), scenario.training
    stages = len(settings.stages(len(owner.images)))
    onions = len(run.cells) * (1 + (settings.underfit_loss is not None))
    attacks = onions * (2 * stages - 1)  # a second network each, but for the last
    networks = attacks + onions * (settings.draws + 1) * (stages - 1)
    run.say(
        f"{counted(onions, 'onion')} of {stages} stages: {networks} networks to train, {attacks} attacks of "
        f"{settings.iterations} iterations"
    )

    def short(iterations: int = 1, steps: int = 1) -> Peeling:
        own = settings.model_copy(update={"iterations": iterations})
        return Peeling(owner, own, training.model_copy(update={"steps": steps}))

    everything = torch.arange(len(owner.images))
    trained = short().trained(everything)
    step = seconds_per_step(lambda steps: short(steps=steps).trained(everything))
    iteration = seconds_per_step(lambda iterations: short(iterations).attacked(everything, *trained))
    steps = planned_steps(training, len(everything))
    return networks * step * steps + attacks * iteration * settings.iterations


def advantage(data: pd.DataFrame, chosen: str = "easiest") -> pd.DataFrame:
    """Subtract accuracy after leaving out at random from that by `chosen`: columns `seed`, `num_private`, `gain`."""
    table = data.pivot_table("accuracy", ["seed", "num_private"], "chosen").reindex(columns=[chosen, "random"])
    return (table[chosen] - table["random"]).dropna().rename("gain").reset_index()


def onion_statistics(data: pd.DataFrame) -> Statistics:
    """Compute for both figures errors, accuracies and the balance of classes as images are left out."""
    fitted, infinite = data[data.regime == FITTED], data[data.regime == INFINITE]
    gain, last = advantage(fitted), fitted.num_private.min()
    minority = fitted[fitted.num_private == last].groupby("chosen").minority.mean()
    return {
        **layer_statistics(fitted[fitted.chosen == "easiest"]),
        **gain_statistics("gain", gain),
        **gain_statistics("duals_gain", advantage(fitted, "duals")),
        **gain_statistics("infinite_gain", advantage(infinite, "duals")),
        **gain_statistics("underfit_gain", advantage(data[data.regime == UNDERFIT])),
        **gain_statistics("last_gain", gain[gain.num_private == last]),
        "infinite_images": [infinite.num_private.max(), infinite.num_private.min()],
        "last_images": last,
        "easiest_minority": minority["easiest"],
        "random_minority": minority["random"],
    }


def layer_statistics(easiest: pd.DataFrame) -> Statistics:
    """Ask of stages that leave out the easiest images whether the next layer gets easier, and whether duals tell it."""
    before = easiest.dropna(subset="l2_before")
    stages = before.groupby("num_private")[["l2_before", "l2_mean"]].mean().sort_index(ascending=False)
    changes = (before.l2_mean - before.l2_before).groupby(before.seed).mean()
    ranks = easiest.groupby("seed").apply(lambda frame: spearman(frame, "num_private", "l2_easiest"))
    dual_ranks = easiest.groupby("seed").dual_rank.mean()
    return {
        "easiest_l2": easiest.groupby("num_private").l2_easiest.mean().sort_index(ascending=False),
        "floor": easiest.floor_l2_mean.mean(),
        "layer_ranks": ranks,
        "layers_easier": Signs.of(ranks > 0),
        "l2_before": stages.l2_before,
        "l2_after": stages.l2_mean,
        "l2_changes": changes,
        "l2_falls": Signs.of(changes < 0),
        "dual_ranks": dual_ranks,
        "dual_ranks_negative": Signs.of(dual_ranks < 0),
    }


def gain_statistics(name: str, gain: pd.DataFrame) -> Statistics:
    """Return the mean of a table of `advantage`, its means by seed, and in how many seeds they are above and below 0.
    Each is None for an empty table, of a regime that was not asked for."""
    by_seed = gain.groupby("seed").gain.mean()
    signs = {f"{name}_positive": Signs.of(by_seed > 0), f"{name}_negative": Signs.of(by_seed < 0)}
    found = {name: gain.gain.mean(), f"{name}_by_seed": by_seed, f"{name}_seed_mean": by_seed.mean(), **signs}
    return dict.fromkeys(found) if gain.empty else found


def draw(data: pd.DataFrame) -> plt.Figure:
    """Draw accuracy and error against the number of images left, means over seeds with their range."""
    data = data[data.regime != INFINITE]
    long = data.melt(["num_private", "chosen", "regime", "seed"], ["accuracy", "l2_mean", "l2_before"], "measure")
    axes = {"sharey": False}
    figure = draw_lines(
        long.dropna(), "num_private", "value", "chosen", style="regime", col="measure", aspect=1.1, facet_kws=axes
    )
    for axis in figure.axes:
        axis.set_xlim(data.num_private.max() + 2, data.num_private.min() - 2)
    return figure


MEASURED = onion_statistics, draw, OnionSettings, cost


@cell_experiment("figure6", "the privacy onion: leave out the easiest images again and again", *MEASURED)
@cell_experiment("figure21", "the privacy onion with classes that get out of balance, and underfit", *MEASURED)
def onion(cell: Cell, settings: OnionSettings) -> pd.DataFrame:
    owner, fitted = Owner.of(cell.scenario), cell.scenario.training
    tables = {FITTED: Peeling(owner, settings, fitted).table()}
    if settings.underfit_loss is not None:
        training = fitted.model_copy(update={"stop_at_loss": settings.underfit_loss})
        tables[UNDERFIT] = Peeling(owner, settings, training).table()
    tables[INFINITE] = at_infinite_width(cell.scenario, settings)
    parts = [table.assign(regime=regime, seed=cell.scenario.seed) for regime, table in tables.items()]
    return pd.concat(parts, ignore_index=True)
