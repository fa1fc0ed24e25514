"""Pictures of a run: reconstruction curves against the floor, leakage by round, and the images."""

import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator, NullLocator

from simulator.reports.drawing import (
    COLOURS,
    FLOOR_COLOUR,
    FLOORS,
    MOST_PANELS,
    Drawn,
    Style,
    attempt,
    panels,
    save,
    themed,
)
from simulator.reports.leakage_figure import leakage_figure
from simulator.reports.panel_titles import panel_titles
from simulator.reports.strips import image_grid
from simulator.results.inside import below
from simulator.results.run import Run

NEARLY_EXACT = 0.01  # L2: below it the axis of the curves is linear and reaches 0
LINES = 6  # of this many or fewer, each is seen well


def draw_figures(record: Run, say: Callable[[str], None] = print) -> list[Drawn]:
    """Draw every figure of a run into its `figures/` folder.

    One that cannot be drawn costs a line, which `say` is given, and nothing else.
    """
    folder = below(record.path, record.path / "figures")
    folder.mkdir(exist_ok=True)
    themed()
    good = record.leakage[record.leakage.status == "ok"]
    if good.empty:
        return []
    drawings: dict[str, Callable[[Path], Drawn | None]] = {
        "curves": partial(curves, record.samples),
        "leakage_by_round": partial(leakage_figure, good),
    }
    for (threat, attack, target), rows in good.groupby(["threat_model", "attack", "target"]):
        name = "_".join(["reconstructions", threat, attack, *([] if target == "private" else [target])])
        drawings[name] = partial(image_grid, record, rows)
    attempts = (attempt(draw, folder, name, say) for name, draw in drawings.items())
    return [drawn for drawn in attempts if drawn is not None]


def curves(samples: pd.DataFrame, path: Path) -> Drawn | None:
    """Sorted L2 distances of each private set (Loo et al. 2024, figure 2), those of the floor in grey.

    The axis is logarithmic down to `NEARLY_EXACT` and linear from there to 0, so that an exact attack has a line.
    """
    if samples.empty:
        return None
    titled = samples.assign(panel=samples.threat_model + ", " + panel_titles(samples))
    order = titled.groupby("panel").l2.median().sort_values(kind="stable").index  # the most exposed first
    shown = list(order[:MOST_PANELS])
    figure, axes = panels(len(shown), sharey=True)
    for axis, panel in zip(axes, shown, strict=True):
        _curves_of(axis, titled[titled.panel == panel])
        axis.set_title("\n".join(textwrap.wrap(panel, 60)))
    _distance_axis(axes[0], max(1.0, float(titled[["l2", *_floors(samples)]].max().max())))
    for axis in axes:
        axis.set(xlabel="private image, easiest first", ylabel="L2 distance")
        axis.label_outer(remove_inner_ticks=False)
        axis.xaxis.set_tick_params(labelbottom=True)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, frameon=False)
    figure.tight_layout()
    some = (
        f" {len(shown)} of {len(order)} settings are shown, the most exposed first." if order[MOST_PANELS:].size else ""
    )
    best = titled.groupby("panel").l2.median()[shown[0]]
    return Drawn(
        save(figure, path),
        "Distance of every reconstruction",
        "How far each reconstruction is from its private image; a line is one update. At 0 it is an exact copy, on the "
        f"grey lines, the floor, no better than what an attacker who knows nothing scores.{some}",
        f"Curves of L2 distances. Lowest: {shown[0]}, median {best:.2g}, the floor {samples.floor_l2.median():.2g}.",
    )


def _floors(samples: pd.DataFrame) -> list[str]:
    return [name for name in FLOORS if name in samples]  # older runs have the first alone


def _curves_of(axis: plt.Axes, rows: pd.DataFrame) -> None:
    updates = list(rows.groupby(["round", "client", "seed", *(["cell"] if "cell" in rows else [])]))
    faint = max(0.25, min(0.9, LINES / len(updates)))
    for _, update in updates:
        rank = np.arange(1, len(update) + 1)
        for name in _floors(rows):
            dashes: Style = {"linestyle": FLOORS[name][0], "linewidth": 1, "color": FLOOR_COLOUR}
            axis.plot(rank, np.sort(update[name]), alpha=faint, **dashes)
        axis.plot(rank, np.sort(update.l2), color=COLOURS[0], marker="o", markersize=3, alpha=faint)
    axis.plot([], [], color=COLOURS[0], marker="o", markersize=3, label="reconstructed")
    for name in _floors(rows):
        axis.plot([], [], color=FLOOR_COLOUR, linestyle=FLOORS[name][0], label=FLOORS[name][1])
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if (rows.match < 0).all():
        axis.text(0.03, 0.04, "nothing returned: scored as the mean image", transform=axis.transAxes, style="italic")


def _distance_axis(axis: plt.Axes, largest: float) -> None:
    """Logarithmic from `NEARLY_EXACT` up, linear below, and 0 a little above the frame."""
    axis.set_yscale("symlog", linthresh=NEARLY_EXACT, linscale=0.6)
    axis.set_ylim(-NEARLY_EXACT / 3, 2 * largest)
    ticks = [0.0, *(10.0**power for power in range(-2, 4) if 10.0**power <= 2 * largest)]
    axis.set_yticks(ticks, ["0 (exact)", *(f"{tick:g}" for tick in ticks[1:])])
    axis.yaxis.set_minor_locator(NullLocator())
