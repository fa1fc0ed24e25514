"""What all figures share: the theme, panels, files, and one style for each name."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only: works without a display

import matplotlib.pyplot as plt
from cycler import cycler

from clients.defenses import DEFENSES
from simulator.results.inside import inside

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
    """A figure in a file. caption: how to read it; alt: what is seen, for who cannot see it."""

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


def attempt(draw: Callable[[Path], Drawn | None], folder: Path, name: str, say: Callable[[str], None]) -> Drawn | None:
    """What was drawn, into a file of this name; None where there is nothing to show, or, after a line that says why,
    where drawing failed."""
    try:
        return draw(inside(folder, folder / f"{name}.png"))
    except Exception as error:
        plt.close("all")
        say(f"figure {name}.png could not be drawn: {type(error).__name__}: {' '.join(str(error).split())}")
        return None


def panels(
    count: int, most: int = PANEL_COLUMNS, width: float = 4.6, height: float = 3.2, sharey: bool = False
) -> tuple[plt.Figure, list[plt.Axes]]:
    """A figure with so many panels in rows of at most `most`; the rest of the last row is left empty."""
    columns = min(count, most)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False, sharey=sharey)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def save(figure: plt.Figure, path: Path) -> Path:
    """As large as what is in it, so that no label is cut."""
    figure.savefig(path, dpi=DPI, bbox_inches="tight", pad_inches=0.08)
    plt.close(figure)
    return path


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A colour and a marker for each defense, the same in every figure: no two names share both, up to 57 of them.

    No defense is black. A registered defense has the place of its name among all of them, whoever stands beside it;
    another name (a chain, a label, `family=value`) has the place that its letters hash to, or the next free one.
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
