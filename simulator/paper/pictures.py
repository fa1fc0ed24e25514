"""How experiments are drawn: seaborn panels, and sheets of reconstructions beside their private images."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from simulator.figures import FLOOR_COLOUR, GRID_COLUMNS, save, show
from simulator.paper.base import Claim, Result, Strip
from simulator.paper.measures import strips
from simulator.record import Record


def themed() -> None:
    sns.set_theme(context="paper", style="whitegrid", palette="colorblind")


def draw_curves(frame: pd.DataFrame, path: Path, hue: str, column: str, row: str | None = None) -> None:
    """Reconstruction curves, mean over seeds, a colour for each value of `hue`, with the floor's dashed in grey."""
    themed()
    kept = [name for name in (hue, column, row) if name]
    frame = frame.assign(**{name: frame[name].astype(str) for name in kept})
    grid = sns.relplot(
        frame, x="rank", y="l2", hue=hue, hue_order=dict.fromkeys(frame[hue]), col=column, row=row, kind="line",
        errorbar=None, height=2.6, aspect=1.2, facet_kws={"sharex": False},
    )  # fmt: skip
    for facet, axis in grid.axes_dict.items():
        values = facet if row else (facet,)
        own = frame[(frame[[row, column] if row else [column]] == list(values)).all(axis=1)]
        floor = own.groupby("rank").floor_l2.mean()
        axis.plot(floor.index, floor, color=FLOOR_COLOUR, linestyle="--", linewidth=1, label="floor: public images")
    grid.set(ylim=(0, None)).set_axis_labels("private image, easiest first", "L2 distance")
    grid.savefig(path, dpi=150)
    plt.close(grid.figure)


def curve_result(
    record: Record, scores: pd.DataFrame, data: pd.DataFrame, claims: list[Claim], hue: str, column: str, row: str
) -> Result:
    """Curves as the figure and, as the sheet, the best images of the first seed."""
    first = scores[scores.seed == scores.seed.min()]
    return Result(data, claims, lambda path: draw_curves(data, path, hue, column, row), lambda: strips(record, first))


def draw_scatter(
    frame: pd.DataFrame, path: Path, x: str, y: str, hue: str, size: str | None, style: str, log: bool = True
) -> None:
    """A scatter plot of two columns; x on a logarithmic axis where `log`."""
    themed()
    figure, axis = plt.subplots(figsize=(6, 4.2))
    sns.scatterplot(frame, x=x, y=y, hue=hue, size=size, style=style, palette="viridis", sizes=(25, 120), ax=axis)
    axis.set_xscale("log" if log else "linear")
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
    if log:
        grid.set(xscale="log")
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
