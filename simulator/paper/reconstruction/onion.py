"""Figures 6 and 21: leave out what was reconstructed best, train again, and the next layer can be reconstructed."""

from pathlib import Path

import pandas as pd
import seaborn as sns
import torch
from matplotlib import pyplot as plt

from attacks.interface.errors import InputError
from clients.training import planned_steps
from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.costs import seconds_per_step
from simulator.paper.measures import listed, seeds, spearman
from simulator.paper.pictures import themed
from simulator.paper.reconstruction.peeling import OnionSettings, Peeling, at_infinite_width
from simulator.tools.distillation import Owner

SAME = 0.02  # of accuracy: what we call no difference
FITTED, UNDERFIT, INFINITE = "fitted", "underfit", "infinite width"


def cost(job: Job) -> float:
    """The largest network's training and attack, once for each network; says how many there are."""
    settings, cells = job.settings(OnionSettings), job.scenario.cells()
    owner, training = Owner.of(cells[0].scenario), cells[0].scenario.training
    stages = len(settings.stages(len(owner.images)))
    onions = len(cells) * (1 + (settings.underfit_loss is not None))
    attacks = onions * (2 * stages - 1)  # a second network each, but for the last
    networks = attacks + onions * (settings.draws + 1) * (stages - 1)
    job.say(
        f"{onions} onion{'s' * (onions > 1)} of {stages} stages: {networks} networks to train, {attacks} attacks of "
        f"{settings.iterations} iterations"
    )

    def short(iterations: int = 1, steps: int = 1) -> Peeling:
        own = settings.model_copy(update={"iterations": iterations})
        return Peeling(owner, own, training.model_copy(update={"steps": steps}), job, "cost")

    everything = torch.arange(len(owner.images))
    trained = short().trained(everything)
    step = seconds_per_step(lambda steps: short(steps=steps).trained(everything))
    iteration = seconds_per_step(lambda iterations: short(iterations).attacked(everything, *trained))
    steps = planned_steps(training, len(everything))
    return networks * step * steps + attacks * iteration * settings.iterations


@experiment("figure6", "the privacy onion: leave out the easiest images again and again", OnionSettings, cost)
@experiment("figure21", "the privacy onion with classes that get out of balance, and underfit", OnionSettings, cost)
def onion(job: Job) -> Result:
    settings = job.settings(OnionSettings)
    parts, cells = [], job.scenario.cells()
    images = job.scenario.partition.images_of(0) or 0
    if len(settings.stages(images)) < 2:
        raise InputError(f"{images} images, {settings.drop} less in each stage, until {settings.until}: only one stage")
    for cell in cells:
        owner = Owner.of(cell.scenario)
        fitted = cell.scenario.training
        regimes = {FITTED: fitted}
        if settings.underfit_loss is not None:
            regimes[UNDERFIT] = fitted.model_copy(update={"stop_at_loss": settings.underfit_loss})
        for regime, training in regimes.items():
            peeled = Peeling(owner, settings, training, job, regime).table()
            parts.append(peeled.assign(regime=regime, seed=cell.scenario.seed))
        parts.append(at_infinite_width(cell.scenario, settings).assign(regime=INFINITE, seed=cell.scenario.seed))
    data = pd.concat(parts, ignore_index=True)
    claims = balanced_claims(data) if settings.balanced else unbalanced_claims(data)
    return Result(data, claims, lambda path: draw(data, path))


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


def exposed(data: pd.DataFrame) -> Claim:
    own = data[(data.chosen == "easiest") & (data.regime == FITTED)].dropna(subset="l2_before")
    changes = (own.l2_mean - own.l2_before).groupby(own.seed).mean()
    stages = own.groupby("num_private")[["l2_before", "l2_mean"]].mean().sort_index(ascending=False)
    shown = ", ".join(f"{count}: {row.l2_before:.2f} to {row.l2_mean:.2f}" for count, row in stages.iterrows())
    return Claim(
        "images that were safe are exposed when others are left out",
        "section 6.2",
        "removing vulnerable points reveals another set of points that are susceptible (Carlini et al. 2022)",
        f"mean L2 of the images that stay, before and after, by their number: {shown}; change, mean over stages, "
        f"{', '.join(f'{change:+.2f}' for change in changes)} by seed; holds below 0 in each of {seeds(own)}",
        bool((changes < 0).all()),
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
        exposed(data),
        Claim(
            "leaving out the easiest costs less accuracy than leaving out random images",
            "section 6.2, figure 6",
            "removing outliers has a reduced effect on the test accuracy",
            f"accuracy minus that of random subsets, mean over stages, {', '.join(f'{gain:+.1%}' for gain in gains)} "
            f"by seed; by the largest |α| instead {by_duals.gain.mean():+.1%}; holds above 0 in each of {seeds(data)}",
            bool((gains > 0).all()),
        ),
        at_size(data),
        hard_to_fit(data),
    ]


def at_size(data: pd.DataFrame) -> Claim:
    own = data[data.regime == INFINITE]
    gains = advantage(own, "duals").groupby("seed").gain.mean()
    return Claim(
        "at the paper's size too, leaving out the largest |α| costs less accuracy than random images",
        "section 6.2, on the number of images of figure 6",
        "not measured; these images tend to be outliers",
        f"kernel regression at infinite width, from {own.num_private.max()} images to {own.num_private.min()}: "
        f"accuracy minus that of random subsets, mean over stages, {', '.join(f'{gain:+.1%}' for gain in gains)} by "
        f"seed; holds above 0 in each of {seeds(own)}",
        bool((gains > 0).all()),
    )


def unbalanced_claims(data: pd.DataFrame) -> list[Claim]:
    fitted = data[data.regime == FITTED]
    gain, last = advantage(fitted), fitted.num_private.min()
    at_last = gain[gain.num_private == last].gain
    minority = fitted[fitted.num_private == last].groupby("chosen").minority.mean()
    claims = [
        layers(data),
        exposed(data),
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
    data = data[data.regime != INFINITE]
    long = data.melt(["num_private", "chosen", "regime", "seed"], ["accuracy", "l2_mean", "l2_before"], "measure")
    grid = sns.relplot(
        long.dropna(), x="num_private", y="value", hue="chosen", style="regime", col="measure", kind="line",
        markers=True, errorbar=("pi", 100), height=3, aspect=1.1, facet_kws={"sharey": False},
    )  # fmt: skip
    grid.set(xlim=(data.num_private.max() + 2, data.num_private.min() - 2))
    grid.savefig(path, dpi=150)
    plt.close(grid.figure)
