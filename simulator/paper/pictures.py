"""How experiments are drawn: seaborn panels, and sheets of reconstructions beside their private images."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.ticker import LogLocator, NullFormatter

from simulator.paper.base import Strip
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


def draw_curves(frame: pd.DataFrame, path: Path, hue: str, column: str, rows: Sequence[str]) -> None:
    """Reconstruction curves, mean over seeds, a colour for each value of `hue`, those of attackers who know nothing in
    grey: public images dashed, their mean dotted.

    rows: every combination of these settings has a row of panels.
    """
    themed()
    panels = {"row": frame[list(rows)].astype(str).agg(", ".join, axis=1), "column": frame[column].astype(str)}
    frame = frame.assign(**panels, colour=frame[hue].astype(str)).rename(columns={"colour": f"{hue} "})
    grid = sns.relplot(
        frame, x="rank", y="l2", hue=f"{hue} ", hue_order=list(dict.fromkeys(frame[f"{hue} "])), col="column",
        row="row", kind="line", errorbar=None, height=2.6, aspect=1.2, facet_kws={"sharex": "col"},
    )  # fmt: skip
    for (row, value), axis in grid.axes_dict.items():
        own = frame[(frame.row == row) & (frame.column == value)]
        for name, style in (("floor_l2", "--"), ("mean_image_l2", ":")):
            floor = own.groupby("rank")[name].mean()
            axis.plot(floor.index, floor, color=FLOOR_COLOUR, linestyle=style, linewidth=1)
        axis.set_title(f"{row}, {value} images" if column == "num_private" else f"{row}, {column} {value}")
    grid.set(ylim=(0, None)).set_axis_labels("private image, easiest first", "L2 distance")
    grid.savefig(path, dpi=150)
    plt.close(grid.figure)


def draw_scatter(
    frame: pd.DataFrame, path: Path, x: str, y: str, hue: str, size: str | None, style: str, log: bool = True
) -> None:
    """A scatter plot of two columns; x on a logarithmic axis where `log`."""
    themed()
    figure, axis = plt.subplots(figsize=(6, 4.2))
    sns.scatterplot(frame, x=x, y=y, hue=hue, size=size, style=style, palette="viridis", sizes=(25, 120), ax=axis)
    if log:
        readable_log(axis)
    axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    save(figure, path)


def draw_lines(
    frame: pd.DataFrame,
    path: Path,
    x: str,
    y: str,
    hue: str | None,
    column: str | None = None,
    log: bool = False,
    log_y: bool = False,
) -> None:
    """Means over seeds with their range, against a setting."""
    themed()
    frame = frame if hue is None else frame.assign(**{hue: frame[hue].astype(str)})
    grid = sns.relplot(
        frame, x=x, y=y, hue=hue, col=column, kind="line", marker="o", errorbar=("pi", 100), height=3, aspect=1.2
    )
    for axis in grid.axes.flat if log else ():
        readable_log(axis)
    if log_y:
        grid.set(yscale="log")
    grid.savefig(path, dpi=150)
    plt.close(grid.figure)


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
