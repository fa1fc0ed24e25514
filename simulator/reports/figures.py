"""Figures of a run: reconstruction curves against the floor, leakage of every update, and the images."""

import itertools
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator, NullLocator

from simulator.reports import drawing
from simulator.reports.drawing import Drawn, Style, image_grid
from simulator.results.columns import leakage_floors
from simulator.results.keys import ALL, owner
from simulator.rundir.exposure_rows import swept_keys, worst_first
from simulator.rundir.run import Run

SPREAD = 0.32  # of a place on the x axis, to either side: updates that coincide stand beside each other
MOST_NAMED = 10  # clients in a legend
NARROW = 3.4  # inches of a panel: a phone shows it as it was drawn
LETTERS, MOST_LETTERS = 12, 45  # of labels of the x axis: in an inch, and below a panel
SHORTEST = 9  # line of a label, in letters
CLIENT, ROUND, DEFENSE = "who", "round", "defense"


def leakage_figure(leakage: pd.DataFrame, path: Path) -> Drawn | None:
    """Draw a dot for every update, and grey dashes for the floor; None for a single update, or without the truth."""
    leakage = leakage.dropna(subset=["leakage"])
    if len(leakage) < 2:
        return None
    x = horizontal(leakage)
    frame = leakage.assign(who=leakage.client.map(owner))
    frame = frame.assign(panel=frame.threat_model + ", " + drawing.panel_titles(frame, without=x))
    order = frame.panel[worst_first(leakage).index].unique()
    shown, places = list(order[: drawing.MOST_PANELS]), places_of(frame, x)
    look = drawing.styles(places) if x == DEFENSE else _client_styles(frame)
    wide = sum(len(drawing.value_text(name)) for name in places) > MOST_LETTERS
    figure, axes = drawing.panels(len(shown), most=1, width=9.2 if wide else NARROW, height=3.0, sharey=True)
    for axis, panel in zip(axes, shown, strict=True):
        _panel(axis, frame[frame.panel == panel], x, look)
        axis.set_title("\n".join(textwrap.wrap(panel, 40)))
    axes[0].set(ylim=(-0.04, 1.06), yticks=np.linspace(0, 1, 6))
    for axis in axes:
        axis.set(xlabel="" if x in (CLIENT, DEFENSE) else drawing.short(x), ylabel="leakage")
        axis.label_outer(remove_inner_ticks=False)
        axis.xaxis.set_tick_params(labelbottom=True)
        axis.xaxis.label.set_visible(True)
    figure.tight_layout()
    named = look if x not in (CLIENT, DEFENSE) and 1 < len(look) <= MOST_NAMED else {}
    handles = [plt.Line2D([], [], linestyle="", label=name, **style) for name, style in named.items()]
    handles.append(plt.Line2D([], [], linestyle="--", color=drawing.FLOOR_COLOUR, label="floor"))
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False)
    some = f" {len(shown)} of {len(order)} settings are shown, the worst first." if len(order) > len(shown) else ""
    worst = frame.loc[frame.leakage.idxmax()]
    return Drawn(
        drawing.save(figure, path),
        "Leakage of every update",
        "Leakage of every update: 1 is an exact copy of every image, 0 no better than a random draw of public images. "
        f"Grey dashes: the floor, what an attacker who knows nothing scores.{some}",
        f"Leakage by {'client' if x == CLIENT else drawing.short(x)}, from {frame.leakage.min():.2f} to "
        f"{frame.leakage.max():.2f}. Highest: {worst['who']} in round {worst['round']} by {worst['attack']} "
        f"({worst['threat_model']}).",
    )


def horizontal(frame: pd.DataFrame) -> str:
    """Return the column of the x axis: the swept setting with most values, else defenses, rounds or clients."""
    moved = [name for name in swept_keys(frame) if frame[name].nunique() > 1]
    if moved:
        return max(moved, key=lambda name: (pd.api.types.is_numeric_dtype(frame[name]), frame[name].nunique()))
    if frame.defense.nunique() > 1:
        return DEFENSE
    return ROUND if frame["round"].nunique() > 1 else CLIENT


def places_of(frame: pd.DataFrame, x: str) -> list:
    """Return the places of the x axis in order: numbers sorted, clients by number and all last, no defense first."""
    if x == CLIENT:
        return [owner(client) for client in sorted(frame.client.unique(), key=lambda client: (client < 0, client))]
    found = list(dict.fromkeys(frame[x]))
    if pd.api.types.is_numeric_dtype(frame[x]):
        return sorted(found)
    return sorted(found, key=lambda name: name != drawing.UNDEFENDED) if x == DEFENSE else found


def spread(frame: pd.DataFrame, x: str) -> pd.Series:
    """Return the x coordinate of every row; rows of one place stand beside each other, clients in order."""
    place = frame[x].map({name: index for index, name in enumerate(places_of(frame, x))}).astype(float)
    ordered = frame.sort_values(["client", "round", "seed"], key=lambda one: one.where(one >= 0, one.max() + 1))
    rank = ordered.groupby(x).cumcount().reindex(frame.index)
    most = max(int(rank.max()), 1)
    middle = frame.groupby(x)[x].transform("size").sub(1).div(2)
    return place + (rank - middle) * 2 * SPREAD / most * min(1.0, most / 4)


def _client_styles(frame: pd.DataFrame) -> dict[str, Style]:
    """Return a colour and a marker for each client by its number, black for all of them together."""
    names = places_of(frame, CLIENT)
    pairs = itertools.cycle(zip(drawing.COLOURS, drawing.MARKERS, strict=False))
    look = {name: {"color": colour, "marker": marker} for name, (colour, marker) in zip(names, pairs, strict=False)}
    return look | {owner(ALL): {"color": "black", "marker": "*"}} if owner(ALL) in names else look


def _panel(axis: plt.Axes, rows: pd.DataFrame, x: str, look: dict[str, Style]) -> None:
    at, places = spread(rows, x), places_of(rows, x)
    floors = leakage_floors(rows).groupby(rows[x]).mean()
    for index, name in enumerate(places):
        axis.hlines(floors[name], index - 0.42, index + 0.42, color=drawing.FLOOR_COLOUR, linestyle="--", linewidth=1.2)
    column = DEFENSE if x == DEFENSE else "who"
    for name, own in rows.groupby(column, sort=False):
        style = look[str(name)]
        if x == ROUND:
            for _, line in own.groupby("seed"):
                axis.plot(at[line.index], line.leakage, color=style["color"], linewidth=0.8, alpha=0.6)
        axis.scatter(at[own.index], own.leakage, s=30, alpha=0.9, zorder=3, **style)
    names = [drawing.value_text(name) for name in places]
    letters = int(LETTERS * axis.bbox.width / axis.figure.dpi / len(names)) - 1
    if letters >= SHORTEST:
        axis.set_xticks(range(len(names)), [textwrap.fill(name, letters) for name in names])
    else:  # there is too little room for words
        cut = [textwrap.shorten(name, 24, placeholder=" …") for name in names]
        axis.set_xticks(range(len(names)), cut, rotation=40, ha="right", rotation_mode="anchor")
    axis.set_xlim(-0.6, len(places) - 0.4)
    axis.grid(axis="x", visible=False)


NEARLY_EXACT = 0.01  # L2: below it the axis of the curves is linear and reaches 0
LINES = 6  # of this many or fewer, each is seen well


def draw_figures(record: Run, say: Callable[[str], None] = print) -> list[Drawn]:
    """Draw every figure of a run, as `draw_all` does."""
    good = record.leakage[record.leakage.status == "ok"]
    drawings: dict[str, Callable[[Path], Drawn | None]] = {}
    if len(good):
        drawings = {"curves": partial(curves, record.samples), "leakage_by_round": partial(leakage_figure, good)}
    for (threat, attack, target), rows in good.groupby(["threat_model", "attack", "target"]):
        name = "_".join(["reconstructions", threat, attack, *([] if target == "private" else [target])])
        drawings[name] = partial(image_grid, record, rows)
    return drawing.draw_all(record.path, drawings, say)


def curves(samples: pd.DataFrame, path: Path) -> Drawn | None:
    """Draw the sorted L2 distances of each private set (Loo et al. 2024, figure 2), those of the floor in grey."""
    if samples.empty:
        return None
    titled = samples.assign(panel=samples.threat_model + ", " + drawing.panel_titles(samples))
    order = titled.groupby("panel").l2.median().sort_values(kind="stable").index
    shown = list(order[: drawing.MOST_PANELS])
    figure, axes = drawing.panels(len(shown), most=1, width=NARROW, height=2.8, sharey=True)
    for axis, panel in zip(axes, shown, strict=True):
        _curves_of(axis, titled[titled.panel == panel])
        axis.set_title("\n".join(textwrap.wrap(panel, 40)))
    # logarithmic from `NEARLY_EXACT` up and linear below, so that an exact attack has a line
    top = 2 * max(1.0, float(titled[["l2", *drawing.FLOORS]].max().max()))
    ticks = [0.0, *(10.0**power for power in range(-2, 4) if 10.0**power <= top)]
    axes[0].set_yscale("symlog", linthresh=NEARLY_EXACT, linscale=0.6)
    axes[0].set_ylim(-NEARLY_EXACT / 3, top)
    axes[0].set_yticks(ticks, ["0 (exact)", *(f"{tick:g}" for tick in ticks[1:])])
    axes[0].yaxis.set_minor_locator(NullLocator())
    for axis in axes:
        axis.set(xlabel="private image, easiest first", ylabel="L2 distance")
        axis.label_outer(remove_inner_ticks=False)
        axis.xaxis.set_tick_params(labelbottom=True)
    drawing.legend_below(axes[0])
    figure.tight_layout()
    cut = f" {len(shown)} of {len(order)} settings are shown, the closest first."
    some = cut if len(order) > len(shown) else ""
    best = titled.groupby("panel").l2.median()[shown[0]]
    return Drawn(
        drawing.save(figure, path),
        "Distance of every reconstruction",
        "How far each reconstruction is from its private image; a line is one update. At 0 it is an exact copy, on the "
        f"grey lines, the floor, no better than what an attacker who knows nothing scores.{some}",
        f"Curves of L2 distances. Lowest: {shown[0]}, median {best:.2g}, the floor {samples.floor_l2.median():.2g}.",
    )


def _curves_of(axis: plt.Axes, rows: pd.DataFrame) -> None:
    updates = list(rows.groupby(["round", "client", "seed", *(["cell"] if "cell" in rows else [])]))
    faint = max(0.25, min(0.9, LINES / len(updates)))
    for _, update in updates:
        rank = np.arange(1, len(update) + 1)
        for name, (dashes, _) in drawing.FLOORS.items():
            axis.plot(
                rank, np.sort(update[name]), alpha=faint, linestyle=dashes, linewidth=1, color=drawing.FLOOR_COLOUR
            )
        axis.plot(rank, np.sort(update.l2), color=drawing.COLOURS[0], marker="o", markersize=3, alpha=faint)
    axis.plot([], [], color=drawing.COLOURS[0], marker="o", markersize=3, label="reconstructed")
    for dashes, label in drawing.FLOORS.values():
        axis.plot([], [], color=drawing.FLOOR_COLOUR, linestyle=dashes, label=label)
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))  # numbers of three digits do not touch
    if (rows.match < 0).all():
        said = "nothing returned:\nscored as the mean image"
        axis.text(0.03, 0.12, said, transform=axis.transAxes, style="italic", va="bottom")
