"""Draw what all figures share: theme, panels, files, a style for each name, names beside points, titles of panels."""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from cycler import cycler

from clients.defenses import DEFENSES
from simulator.reports.tables import short, swept_keys
from simulator.results.disk import below, inside
from simulator.run_errors import one_line_error

matplotlib.use("Agg")  # files only: works without a display


PANEL_COLUMNS = 2  # two panels fill a page without letters below 12 pixels
MOST_PANELS = 12
DPI = 144  # one and a half of the 96 pixels that a browser takes for an inch
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A4E9E")  # Okabe and Ito (2008), violet
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
UNDEFENDED = "none"
FLOOR_COLOUR = "0.45"
FLOORS = {"floor_l2": ("--", "floor: public images"), "mean_image_l2": (":", "floor: their mean")}
Style = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A figure in a file.

    path: of the file.
    title: what it shows.
    caption: how to read it.
    alt: a description for readers who cannot see it.
    """

    path: Path
    title: str
    caption: str
    alt: str


def themed() -> None:
    sizes: Style = dict.fromkeys(["font.size", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"], 9)
    sizes |= {"axes.titlesize": 10, "axes.labelsize": 9.5, "axes.titlelocation": "left"}
    marks = {"axes.prop_cycle": cycler(color=COLOURS), "legend.frameon": True, "lines.markeredgewidth": 1}
    # seaborn's styles as matplotlib has them: seaborn itself takes a second to import
    plt.style.use(["seaborn-v0_8-whitegrid", "seaborn-v0_8-paper", sizes | marks])


def draw_all(
    run_dir: Path, drawings: dict[str, Callable[[Path], Drawn | None]], say: Callable[[str], None]
) -> list[Drawn]:
    """Draw each figure into the file of its name in `figures/` of a run directory.

    A figure that has nothing to show is left out; one that cannot be drawn costs a line, which `say` is given.
    """
    folder = below(run_dir, run_dir / "figures")
    folder.mkdir(exist_ok=True)
    themed()
    drawn = []
    for name, draw in drawings.items():
        try:
            drawn.append(draw(inside(folder, folder / f"{name}.png")))
        except Exception as error:
            plt.close("all")
            say(f"figure {name}.png could not be drawn: {one_line_error(error)}")
    return [one for one in drawn if one is not None]


def panels(
    count: int, most: int = PANEL_COLUMNS, width: float = 4.6, height: float = 3.2, sharey: bool = False
) -> tuple[plt.Figure, list[plt.Axes]]:
    """Make a figure with so many panels in rows of at most `most`; the rest of the last row is left empty."""
    columns = min(count, most)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False, sharey=sharey)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def legend_below(axis: plt.Axes, columns: int = 1) -> None:
    """Write the legend of a panel below its figure."""
    handles, labels = axis.get_legend_handles_labels()
    axis.figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=columns, frameon=False)


def save(figure: plt.Figure, path: Path) -> Path:
    """Write a figure, as large as its content, so that no label is cut; return the path."""
    figure.savefig(path, dpi=DPI, bbox_inches="tight", pad_inches=0.08)
    plt.close(figure)
    return path


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return a colour and a marker for each defense, the same in every figure; no two of up to 57 names share both.

    No defense is black. The style of a registered defense follows from its place among all of them, that of another
    name (a chain, a label, `family=value`) from a hash of its letters, or the next free one.
    """
    pairs = [{"color": colour, "marker": marker} for marker, colour in product(MARKERS, COLOURS)]
    places = {name: place for place, name in enumerate(sorted(DEFENSES))}
    others, taken = len(pairs) - len(places), set[int]()
    for name in sorted(set(names := list(dict.fromkeys(names))) - {UNDEFENDED, *places}):
        start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        tried = [(start + step) % others for step in range(others)]
        place = next((place for place in tried if place not in taken), tried[0])
        taken.add(place)
        places[name] = len(pairs) - 1 - place
    return {name: {"color": "#000000", "marker": "o"} if name == UNDEFENDED else pairs[places[name]] for name in names}


LINE = 0.165  # inches that a name takes
NEAR = 1.04  # x of the names, in widths of the panel


def name_points(axis: plt.Axes, points: dict[str, tuple[float, float]], look: dict[str, Style]) -> None:
    """Write each name beside the panel, as near to the height of its point as the others leave room for.

    points: (x, y) in data coordinates. The panel's limits must be set, and its figure not change size after.
    """
    if not points:
        return
    height = axis.bbox.height / axis.figure.dpi
    names = sorted(points, key=lambda name: (points[name][1], points[name][0], name))
    wanted = [float(axis.transAxes.inverted().transform(axis.transData.transform(points[name]))[1]) for name in names]
    for name, y in zip(names, apart(wanted, LINE / height), strict=True):
        style = look[name]
        line = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.6, "alpha": 0.7, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", points[name], (NEAR, y), textcoords="axes fraction", annotation_clip=False, arrowprops=line)
        axis.plot(NEAR, y, transform=axis.transAxes, clip_on=False, markersize=5, **style)
        axis.text(NEAR + 0.02, y, name, transform=axis.transAxes, va="center", fontsize=9)


def apart(wanted: Sequence[float], gap: float) -> np.ndarray:
    """Return heights near `wanted`, which ascends, at least `gap` apart; between 0 and 1 if there is room for all."""
    steps = gap * np.arange(len(wanted))
    free = np.maximum.accumulate(np.asarray(wanted) - steps)  # without the gaps: may coincide, may not descend
    return np.clip(free, 0.0, max(0.0, 1.0 - steps[-1])) + steps


def value_text(value: object) -> str:
    """Return a swept value as text; a mapping, which is JSON in tables, without signs: `FedProx, proximal_mu: 50`."""
    return re.sub(r"\b(name|options): ", "", re.sub(r'[{}"]', "", str(value)))


def panel_titles(frame: pd.DataFrame, without: str = "") -> pd.Series:
    """Return titles of panels: attack, defense, target and swept settings but the seed. without: the one on an axis."""
    titles = frame.attack.astype(str)
    if without != "defense":
        titles = titles + frame.defense.map(lambda name: "" if name == "none" else f", {name}")
    titles = titles + frame.target.map(lambda name: "" if name == "private" else f", {name} images")
    for key in swept_keys(frame):
        if key != without:
            titles = titles + f", {short(key)} " + frame[key].map(value_text)
    return titles
