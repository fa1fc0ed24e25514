"""How experiments are drawn: in seaborn panels."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.ticker import LogLocator, NullFormatter

from simulator.reports.drawing import FLOOR_COLOUR, FLOORS, themed


def readable_log(axis: plt.Axes) -> None:
    """A logarithmic x axis with plain numbers at powers of ten and, over two decades or less, at 2 and 5 of each."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high <= 100 * low else (1.0,)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def draw_curves(frame: pd.DataFrame, hue: str, rows: Sequence[str]) -> plt.Figure:
    """Reconstruction curves, a panel for each number of images, mean over seeds, a colour for each value of `hue`;
    those of the floors in grey, public images dashed and their mean dotted.

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
        for name, (style, _) in FLOORS.items():
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
