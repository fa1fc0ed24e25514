"""Figures 6 and 21: leave out what was reconstructed best, train again, and the next layer can be reconstructed."""

from pathlib import Path

import pandas as pd
import seaborn as sns
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

from attacks.ntk import NTKAttack
from attacks.observation import Knowledge, Observation
from attacks.seeding import derive_seed, torch_generator
from clients.client import centered
from clients.config import Count, Positive, Section, TrainingConfig
from clients.defenses.base import TrainingSet
from clients.defenses.prune_easiest import duals, without_easiest
from clients.losses import accuracy
from clients.models import build_model
from clients.training import train
from simulator.distillation import Owner
from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import listed, seeds, spearman
from simulator.paper.pictures import themed
from simulator.paper.predicted_points import matched

SAME = 0.02  # of accuracy: what we call no difference
FITTED, UNDERFIT = "fitted", "underfit"


class OnionSettings(Section):
    """drop: images left out in each stage. until: images of the last stage. width_per_image: of both hidden layers.
    balanced: whether as many of each class are left out. underfit_loss: where training stops for a second time through,
    underfit. draws: random subsets to compare with. iterations, learning_rate: of the attack."""

    drop: Count = 20
    until: Count = 100
    width_per_image: Positive = 8.0
    balanced: bool = True
    underfit_loss: Positive | None = None
    draws: Count = 3
    iterations: Count = 30_000
    learning_rate: Positive = 0.02

    def stages(self, images: int) -> list[int]:
        return list(range(images, self.until - 1, -self.drop))


@experiment("figure6", "the privacy onion: leave out the easiest images again and again", OnionSettings)
@experiment("figure21", "the privacy onion with classes that get out of balance, and underfit", OnionSettings)
def onion(job: Job) -> Result:
    settings = job.settings(OnionSettings)
    parts, cells = [], job.scenario.cells()
    if job.profile != "quick":
        job.say(cost(settings, job.scenario.partition.images_of(0) or 0, len(cells)))
    for cell in cells:
        owner = Owner.of(cell.scenario)
        fitted = cell.scenario.training
        regimes = {FITTED: fitted}
        if settings.underfit_loss is not None:
            regimes[UNDERFIT] = fitted.model_copy(update={"stop_at_loss": settings.underfit_loss})
        for regime, training in regimes.items():
            peeled = Peeling(owner, settings, training, job, regime).table()
            parts.append(peeled.assign(regime=regime, seed=cell.scenario.seed))
    data = pd.concat(parts, ignore_index=True)
    claims = balanced_claims(data) if settings.balanced else unbalanced_claims(data)
    return Result(data, claims, lambda path: draw(data, path))


def cost(settings: OnionSettings, images: int, onions: int) -> str:
    """What is ahead, in words."""
    stages, onions = len(settings.stages(images)), onions * (1 + (settings.underfit_loss is not None))
    trained = onions * (stages + (settings.draws + 1) * (stages - 1))
    return (
        f"{onions} onions of {stages} stages: {onions * stages} attacks of {settings.iterations} iterations on "
        f"{settings.until} to {images} images and {trained} networks to train, up to width "
        f"{settings.width_per_image * images:.0f}"
    )


class Peeling:
    """One data owner's images, left out layer by layer; the network's width follows their number (appendix H.6)."""

    def __init__(self, owner: Owner, settings: OnionSettings, training: TrainingConfig, job: Job, regime: str):
        self.owner, self.settings, self.training = owner, settings, training
        self.stages = settings.stages(len(owner.images))
        groups = owner.targets.argmax(1) if owner.targets.shape[1] > 1 else (owner.targets[:, 0] > 0).long()
        self.groups = groups
        test_images, self.test_labels = owner.data.test()
        self.test_images = centered(test_images, owner.data.pixel_mean)
        self.report = lambda what, done: job.report(f"seed {owner.scenario.seed}, {regime}: {what}", done, 100)

    def table(self) -> pd.DataFrame:
        """A row per stage and way to choose: `chosen`, `num_private`, `accuracy`, `minority` (share of the smaller
        class); for `easiest` also `l2_mean`, `l2_easiest` (of those left out next), `floor_l2_mean`, `dual_rank`."""
        rows = self.easiest()
        for draw in range(self.settings.draws):
            rows += self.ranked(f"random {draw}", lambda kept, draw=draw: self.random(kept, draw))
        rows += self.ranked("duals", self.largest_duals)
        frame = pd.DataFrame(rows)
        return frame.assign(chosen=frame.chosen.str.partition(" ")[0])

    def easiest(self) -> list[dict[str, object]]:
        """Those that the attack reconstructs best are left out."""
        kept, rows = torch.arange(len(self.owner.images)), []
        for stage, count in enumerate(self.stages):
            self.report(f"{count} images", 100 * stage // len(self.stages))
            initial, model = self.trained(kept)
            l2, floor = self.attacked(kept, initial, model)
            row = self.row("easiest", kept, model)
            size = self.largest_duals(kept)
            order = l2.sort().values[: self.settings.drop]
            rank = pd.Series(l2.numpy()).corr(pd.Series(size.numpy()), method="spearman")
            scores = {"l2_mean": float(l2.mean()), "l2_easiest": float(order.mean()), "floor_l2_mean": floor}
            rows.append(row | scores | {"dual_rank": float(rank)})
            kept = self.without(kept, -l2)
        return rows

    def ranked(self, chosen: str, rank) -> list[dict[str, object]]:
        """The same number is left out by another rank, without an attack; all images are the stage before."""
        kept, rows = torch.arange(len(self.owner.images)), []
        for _ in self.stages[1:]:
            kept = self.without(kept, rank(kept))
            rows.append(self.row(chosen, kept, self.trained(kept)[1]))
        return rows

    def without(self, kept: Tensor, ease: Tensor) -> Tensor:
        groups = self.groups[kept] if self.settings.balanced else None
        return kept[without_easiest(ease, self.settings.drop, groups)]

    def random(self, kept: Tensor, draw: int) -> Tensor:
        return torch.rand(len(kept), generator=torch_generator(self.owner.scenario.seed, f"onion/{draw}", len(kept)))

    def largest_duals(self, kept: Tensor) -> Tensor:
        """The rank of the defense `prune_easiest`."""
        data = TrainingSet(self.owner.images[kept], self.owner.targets[kept])
        return duals(self.network(len(kept)), data).norm(dim=1)

    def network(self, count: int) -> nn.Module:
        scenario = self.owner.scenario
        config = scenario.model.model_copy(update={"width": max(1, round(self.settings.width_per_image * count))})
        seed = derive_seed(scenario.seed, "onion", count)
        return build_model(config, self.owner.data.shape, self.owner.targets.shape[1], seed)

    def trained(self, kept: Tensor) -> tuple[dict[str, Tensor], nn.Module]:
        """(θ₀, the network at θ_f); every way to choose starts a stage from the same θ₀."""
        model = self.network(len(kept))
        initial = {name: value.detach().clone() for name, value in model.state_dict().items()}
        train(model, self.owner.images[kept], self.owner.targets[kept], self.training, torch.Generator())
        return initial, model

    def attacked(self, kept: Tensor, initial: dict[str, Tensor], model: nn.Module) -> tuple[Tensor, float]:
        """((N,) L2 of the reconstruction curve, mean L2 of as many public images)."""
        data, private = self.owner.data, self.owner.images[kept]
        final = {name: value.detach().clone() for name, value in model.state_dict().items()}
        observation = Observation(model, ((initial, final),), data.shape)
        knowledge = Knowledge(num_private=len(kept), pixel_mean=data.pixel_mean)
        attack = NTKAttack(iterations=self.settings.iterations, learning_rate=self.settings.learning_rate)
        found = attack.reconstruct(
            observation, knowledge, torch_generator(self.owner.scenario.seed, "onion", len(kept))
        )
        model.cpu()
        mean = torch.tensor(data.pixel_mean).view(1, -1, 1, 1)
        public = data.public()[0][: len(found.images)]
        l2 = torch.from_numpy(matched(private + mean, found.pixels().float()))
        return l2, float(matched(private + mean, public).mean())

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


def advantage(data: pd.DataFrame, chosen: str = "easiest") -> pd.DataFrame:
    """Accuracy after leaving out by `chosen`, minus that after leaving out at random: `seed`, `num_private`, `gain`."""
    table = data.pivot_table("accuracy", ["seed", "num_private"], "chosen")
    return (table[chosen] - table["random"]).dropna().rename("gain").reset_index()


def layers(data: pd.DataFrame) -> Claim:
    own = data[(data.chosen == "easiest") & (data.regime == FITTED)]
    ranks = own.groupby("seed").apply(lambda frame: spearman(frame, "num_private", "l2_easiest"))
    by_stage = own.groupby("num_private").l2_easiest.mean().sort_index(ascending=False)
    return Claim(
        "without the easiest images others become easy",
        "section 6.2, figure 6",
        "we are still able to reconstruct data points with increasing attack quality, replicating the privacy onion",
        f"mean L2 of those left out next, by number of images: {listed(by_stage)} (floor of all "
        f"{own.floor_l2_mean.mean():.2f}); Spearman of images and L2 {', '.join(f'{rank:.2f}' for rank in ranks)} by "
        f"seed; holds above 0 in each of {seeds(own)}",
        bool((ranks > 0).all()),
    )


def hard_to_fit(data: pd.DataFrame) -> Claim:
    own = data[(data.chosen == "easiest") & (data.regime == FITTED)]
    ranks = own.groupby("seed").dual_rank.mean()
    return Claim(
        "the easiest images are those that the defense prune_easiest leaves out",
        "section 6.1",
        "large |α| means hard to fit and easy to reconstruct",
        f"Spearman of |α| = |K₀⁻¹(y − f₀)| and L2, mean over stages, {', '.join(f'{rank:.2f}' for rank in ranks)} by "
        "seed; holds below 0 in each",
        bool((ranks < 0).all()),
    )


def balanced_claims(data: pd.DataFrame) -> list[Claim]:
    by_reconstruction, by_duals = (advantage(data[data.regime == FITTED], name) for name in ("easiest", "duals"))
    gains = by_reconstruction.groupby("seed").gain.mean()
    return [
        layers(data),
        Claim(
            "leaving out the easiest costs less accuracy than leaving out random images",
            "section 6.2, figure 6",
            "removing outliers has a reduced effect on the test accuracy",
            f"accuracy minus that of random subsets, mean over stages, {', '.join(f'{gain:+.1%}' for gain in gains)} "
            f"by seed; by the largest |α| instead {by_duals.gain.mean():+.1%}; holds above 0 in each of {seeds(data)}",
            bool((gains > 0).all()),
        ),
        hard_to_fit(data),
    ]


def unbalanced_claims(data: pd.DataFrame) -> list[Claim]:
    fitted = data[data.regime == FITTED]
    gain, last = advantage(fitted), fitted.num_private.min()
    at_last = gain[gain.num_private == last].gain
    minority = fitted[fitted.num_private == last].groupby("chosen").minority.mean()
    claims = [
        layers(data),
        Claim(
            "classes get out of balance, and accuracy suffers",
            "appendix J.4, figure 21",
            "removing easy reconstructions results in strongly imbalanced classes, resulting in poor test accuracy",
            f"at {last} images the smaller class holds {minority['easiest']:.0%} (random: {minority['random']:.0%}); "
            f"accuracy minus that of random subsets {', '.join(f'{value:+.1%}' for value in at_last)} by seed, over "
            f"all stages {gain.gain.mean():+.1%}; holds where the smaller class is below 40 % and accuracy lower in "
            f"each of {seeds(data)}",
            bool(minority["easiest"] < 0.4 and (at_last < 0).all()),
        ),
    ]
    underfit = data[data.regime == UNDERFIT]
    if len(underfit):
        without = advantage(underfit)
        difference = without.groupby("seed").gain.mean()
        claims.append(
            Claim(
                "underfit, it makes no difference what is left out",
                "appendix J.4",
                "if we underfit the data, we do not observe any difference in test accuracy",
                "accuracy minus that of random subsets, mean over stages, "
                f"{', '.join(f'{value:+.1%}' for value in difference)} by seed, {difference.mean():+.1%} together "
                f"(fitted: {gain.gain.mean():+.1%}); holds where together it is within {SAME:.0%} of 0",
                bool(abs(difference.mean()) <= SAME),
            )
        )
    return claims


def draw(data: pd.DataFrame, path: Path) -> None:
    """Accuracy and error against the number of images left, means over seeds with their range."""
    themed()
    long = data.melt(["num_private", "chosen", "regime", "seed"], ["accuracy", "l2_easiest", "l2_mean"], "measure")
    grid = sns.relplot(
        long.dropna(), x="num_private", y="value", hue="chosen", style="regime", col="measure", kind="line",
        markers=True, errorbar=("pi", 100), height=3, aspect=1.1, facet_kws={"sharey": False},
    )  # fmt: skip
    grid.set(xlim=(data.num_private.max() + 2, data.num_private.min() - 2))
    grid.savefig(path, dpi=150)
    plt.close(grid.figure)
