"""How experiments are drawn: seaborn panels, and sheets of reconstructions beside their private images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.ticker import LogLocator, NullFormatter

from simulator.paper.experiment import Strip
from simulator.reports.figures import FLOOR_COLOUR, GRID_COLUMNS, save, show


def themed() -> None:
    sns.set_theme(context="paper", style="whitegrid", palette="colorblind")


def readable_log(axis: plt.Axes) -> None:
    """A logarithmic x axis with plain numbers at powers of ten and, over two decades or less, at 2 and 5 of each."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high <= 100 * low else (1.0,)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def draw_curves(frame: pd.DataFrame, hue: str, rows: Sequence[str]) -> plt.Figure:
    """Reconstruction curves, a panel for each number of images, mean over seeds, a colour for each value of `hue`;
    those of the uninformed baselines in grey, public images dashed and their mean dotted.

    rows: every combination of these settings has a row of panels.
    """
    themed()
    panels = {"row": frame[list(rows)].astype(str).agg(", ".join, axis=1), "column": frame.num_private.astype(str)}
    frame = frame.assign(**panels, colour=frame[hue].astype(str)).rename(columns={"colour": f"{hue} "})
    grid = sns.relplot(
        frame, x="rank", y="l2", hue=f"{hue} ", hue_order=list(dict.fromkeys(frame[f"{hue} "])), col="column",
        row="row", kind="line", errorbar=None, height=2.6, aspect=1.2, facet_kws={"sharex": "col"},
    )  # fmt: skip
    for (row, count), axis in grid.axes_dict.items():
        own = frame[(frame.row == row) & (frame.column == count)]
        for name, style in (("floor_l2", "--"), ("mean_image_l2", ":")):
            floor = own.groupby("rank")[name].mean()
            axis.plot(floor.index, floor, color=FLOOR_COLOUR, linestyle=style, linewidth=1)
        axis.set_title(f"{row}, {count} images")
    grid.set(ylim=(0, None)).set_axis_labels("private image, easiest first", "L2 distance")
    return grid.figure


def draw_scatter(
    frame: pd.DataFrame, x: str, y: str, *, style: str, size: str | None = "num_private", log_x: bool = True
) -> plt.Figure:
    """A scatter plot of two columns, coloured by width; style and size are columns too."""
    themed()
    figure, axis = plt.subplots(figsize=(6, 4.2))
    sns.scatterplot(frame, x=x, y=y, hue="width", size=size, style=style, palette="viridis", sizes=(25, 120), ax=axis)
    if log_x:
        readable_log(axis)
    axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return figure


def draw_lines(
    frame: pd.DataFrame, x: str, y: str, hue: str, *, log_x: bool = False, log_y: bool = False, **options: Any
) -> plt.Figure:
    """Means over seeds with their range against a setting, a colour for each value of `hue`.

    options: more of seaborn.relplot, such as `col`, the setting that has a panel for each value.
    """
    themed()
    markers = {"marker": "o"} if "style" not in options else {"markers": True}
    options = {"height": 3, "aspect": 1.2, "errorbar": ("pi", 100), **markers, **options}
    grid = sns.relplot(frame.assign(**{hue: frame[hue].astype(str)}), x=x, y=y, hue=hue, kind="line", **options)
    for axis in grid.axes.flat if log_x else ():
        readable_log(axis)
    if log_y:
        grid.set(yscale="log")
    return grid.figure


def draw_sheet(strips: Sequence[Strip], path: Path) -> None:
    """Private images above what was made of them, closest first, ten in a line, strip below strip."""
    lines = [
        (strip.title if start == 0 else "", strip, slice(start, start + GRID_COLUMNS))
        for strip in strips
        for start in range(0, len(strip.private), GRID_COLUMNS)
    ]
    if not lines:
        return
    figure = plt.figure(figsize=(0.95 * GRID_COLUMNS, 2.3 * len(lines) + 0.2))
    outer = figure.add_gridspec(len(lines), 1, hspace=0.22, top=0.985, bottom=0.005, left=0.02, right=0.98)
    for line, (title, strip, part) in enumerate(lines):
        inner = outer[line].subgridspec(2, GRID_COLUMNS, hspace=0.2, wspace=0.08)
        for position, (private, guess, l2) in enumerate(
            zip(strip.private[part], strip.guesses[part], strip.l2[part], strict=True)
        ):
            top, bottom = figure.add_subplot(inner[0, position]), figure.add_subplot(inner[1, position])
            show(top, private)
            show(bottom, guess)
            bottom.set_title(f"L2 {l2:.2f}", fontsize=6, pad=2)
            if position == 0 and title:
                top.set_title(title, fontsize=8, loc="left", pad=4)
    save(figure, path, tight=False)
