"""Figures 6 and 21: leave out what was reconstructed best, train again, and the next layer can be reconstructed."""

from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch

from attacks.interface.errors import InputError
from clients.training import planned_steps
from simulator.paper.claims import Signs, Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, experiment, num_private, seconds_per_step
from simulator.paper.measures import spearman
from simulator.paper.pictures import draw_lines
from simulator.paper.reconstruction.peeling import OnionSettings, Peeling, at_infinite_width
from simulator.tools.distillation import Owner

FITTED, UNDERFIT, INFINITE = "fitted", "underfit", "infinite width"


def cost(run: ExperimentRun) -> float:
    """The largest network's training and attack, once for each network; says how many there are."""
    settings, cells = run.settings(OnionSettings), run.cells
    owner, training = Owner.of(cells[0].scenario), cells[0].scenario.training
    stages = len(settings.stages(len(owner.images)))
    onions = len(cells) * (1 + (settings.underfit_loss is not None))
    attacks = onions * (2 * stages - 1)  # a second network each, but for the last
    networks = attacks + onions * (settings.draws + 1) * (stages - 1)
    run.say(
        f"{onions} onion{'s' * (onions > 1)} of {stages} stages: {networks} networks to train, {attacks} attacks of "
        f"{settings.iterations} iterations"
    )

    def short(iterations: int = 1, steps: int = 1) -> Peeling:
        own = settings.model_copy(update={"iterations": iterations})
        return Peeling(owner, own, training.model_copy(update={"steps": steps}), run, "cost")

    everything = torch.arange(len(owner.images))
    trained = short().trained(everything)
    step = seconds_per_step(lambda steps: short(steps=steps).trained(everything))
    iteration = seconds_per_step(lambda iterations: short(iterations).attacked(everything, *trained))
    steps = planned_steps(training, len(everything))
    return networks * step * steps + attacks * iteration * settings.iterations


@experiment("figure6", "the privacy onion: leave out the easiest images again and again", OnionSettings, cost)
@experiment("figure21", "the privacy onion with classes that get out of balance, and underfit", OnionSettings, cost)
def onion(run: ExperimentRun) -> Outcome:
    settings = run.settings(OnionSettings)
    images = min(num_private(cell) for cell in run.cells)
    if len(settings.stages(images)) < 2:
        raise InputError(f"{images} images, {settings.drop} less in each stage, until {settings.until}: only one stage")
    parts = []
    for cell in run.cells:
        owner, fitted = Owner.of(cell.scenario), cell.scenario.training
        tables = {FITTED: Peeling(owner, settings, fitted, run, FITTED).table()}
        if settings.underfit_loss is not None:
            training = fitted.model_copy(update={"stop_at_loss": settings.underfit_loss})
            tables[UNDERFIT] = Peeling(owner, settings, training, run, UNDERFIT).table()
        tables[INFINITE] = at_infinite_width(cell.scenario, settings)
        parts += [table.assign(regime=regime, seed=cell.scenario.seed) for regime, table in tables.items()]
    data = pd.concat(parts, ignore_index=True)
    return Outcome(data, onion_statistics(data), partial(draw, data))


def advantage(data: pd.DataFrame, chosen: str = "easiest") -> pd.DataFrame:
    """Accuracy after leaving out by `chosen`, minus that after leaving out at random: `seed`, `num_private`, `gain`."""
    table = data.pivot_table("accuracy", ["seed", "num_private"], "chosen").reindex(columns=[chosen, "random"])
    return (table[chosen] - table["random"]).dropna().rename("gain").reset_index()


def onion_statistics(data: pd.DataFrame) -> Statistics:
    """What both figures ask of the layers: errors, accuracies and balance of classes as images are left out."""
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
    """Of the stages in which the easiest images are left out: is the next layer easier, and why these images?"""
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
    """A table of `advantage` in the mean, by seed, and in how many seeds it is above and below 0; None where there is
    none, since that regime was not asked for."""
    names = [name, *(f"{name}_{what}" for what in ("by_seed", "seed_mean", "positive", "negative"))]
    if gain.empty:
        return dict.fromkeys(names)
    by_seed = gain.groupby("seed").gain.mean()
    signs = Signs.of(by_seed > 0), Signs.of(by_seed < 0)
    return dict(zip(names, (gain.gain.mean(), by_seed, by_seed.mean(), *signs), strict=True))


def draw(data: pd.DataFrame) -> plt.Figure:
    """Accuracy and error against the number of images left, means over seeds with their range."""
    data = data[data.regime != INFINITE]
    long = data.melt(["num_private", "chosen", "regime", "seed"], ["accuracy", "l2_mean", "l2_before"], "measure")
    axes = {"sharey": False}
    figure = draw_lines(
        long.dropna(), "num_private", "value", "chosen", style="regime", col="measure", aspect=1.1, facet_kws=axes
    )
    for axis in figure.axes:
        axis.set_xlim(data.num_private.max() + 2, data.num_private.min() - 2)
    return figure
