"""Draw what all figures share: theme, panels, files, a style for each name, names beside points, titles of panels; and
figures of strips, images above reconstructions."""

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
from torch import Tensor

from attacks.interface.normalization import stretched
from clients.defenses import DEFENSES
from simulator.reports.tables import short
from simulator.results.disk import below, inside
from simulator.run_errors import one_line_error
from simulator.rundir.exposure_rows import swept_keys, worst_first
from simulator.rundir.run import Run
from simulator.rundir.strip import MOST, Strip, strip_of, title_of

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


FEWEST_COLUMNS = 6  # fewer would cut the titles
MOST_STRIPS = 8  # in one figure
IMAGE, TITLE, CAPTION, GAP, LABEL = 0.95, 0.26, 0.2, 0.05, 0.22  # inches
NOTHING = "nothing returned"


def image_grid(record: Run, rows: pd.DataFrame, path: Path) -> Drawn:
    """Draw private (or distilled) images above their reconstructions: the worst rows, the best images first."""
    shown = worst_first(rows).head(MOST_STRIPS)
    label = str(rows["target"].iloc[0])
    strips = [strip_of(record, row, title_of(row)) for _, row in shown.iterrows()]
    columns = min(MOST, max([FEWEST_COLUMNS, *map(len, strips)]))
    note = f"{len(shown)} of {len(rows)} updates are shown, the worst first" if len(rows) > len(shown) else ""
    draw_strips(strips, path, columns=columns, title=note)
    first = shown.iloc[0]
    what = f"What {first['attack']} made of what the {first['threat_model']} sees: {label} images above reconstructions"
    return Drawn(
        path,
        "Reconstructions",
        f"{what}{'; ' + note if note else ''}.",
        f"{what}. {'; '.join(strip.heading for strip in strips)}.",
    )


def draw_strips(strips: Sequence[Strip], path: Path, *, columns: int = MOST, title: str = "") -> Path:
    """Draw strips below each other. A strip of more than `columns` pairs takes several lines, one without images a line
    of text. title: of the sheet."""
    lines = [part for strip in strips for part in strip.lines(columns)]
    rows = [(line.private is not None) + 1 for line in lines]
    heights = [
        TITLE * bool(line.title) + count * (IMAGE + GAP) + CAPTION + 0.12 if len(line) else 2 * TITLE
        for line, count in zip(lines, rows, strict=True)
    ]
    above = 0.35 if title else 0.05
    height = sum(heights) + above
    figure, sheet = blank_sheet(LABEL + columns * (IMAGE + GAP) + 0.15, height)
    if title:
        sheet.text(LABEL, height - 0.2, title, fontsize=10, va="center", weight="bold")
    top = height - above
    for line, tall in zip(lines, heights, strict=True):
        _draw_line(sheet, line, top)
        top -= tall
    return save(figure, path)


def blank_sheet(width: float, height: float) -> tuple[plt.Figure, plt.Axes]:
    """Make a figure with one axes in inches: axes for each image would take 20 ms."""
    figure = plt.figure(figsize=(width, height))
    sheet = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    sheet.axis("off")
    return figure, sheet


def draw_images(sheet: plt.Axes, images: Tensor, corner: tuple[float, float], image: float, gap: float = GAP) -> None:
    """Draw images (K, C, H, W) beside each other from the upper left `corner` on; an empty frame for NaN."""
    left, top = corner
    for column, one in enumerate(images):
        start = left + column * (image + gap)
        if one.isnan().any():
            frame = plt.Rectangle((start, top - image), image, image, fill=False, edgecolor="0.75", linewidth=0.8)
            sheet.add_patch(frame)
        else:
            show(sheet, one, extent=(start, start + image, top - image, top), aspect="auto")


def _draw_line(sheet: plt.Axes, line: Strip, top: float) -> None:
    """Draw one line of pairs. top: its upper end; the units of the sheet are inches."""
    if line.title:
        sheet.text(LABEL, top - 0.13, line.title, fontsize=9.5, va="center")
        top -= TITLE
    if not len(line):
        sheet.text(LABEL, top - 0.08, NOTHING, fontsize=9, va="center", color="0.4", style="italic")
        return
    images = {} if line.private is None else {line.label: line.private}
    images["reconstructed"] = line.guesses
    for label, pixels in images.items():
        sheet.text(LABEL - 0.04, top - IMAGE / 2, label, fontsize=9, rotation=90, va="center", ha="right")
        draw_images(sheet, pixels, (LABEL, top), IMAGE)
        top -= IMAGE + GAP
    for column, l2 in enumerate(line.l2 if line.private is not None else ()):
        middle = LABEL + column * (IMAGE + GAP) + IMAGE / 2
        sheet.text(middle, top - 0.06, f"L2 {l2:.2f}", fontsize=8.5, ha="center", va="center")


def image_sheet(images: Tensor, titles: list[str], path: Path) -> Path:
    """Draw images (N, C, H, W) in [0, 1], each under its title, ten in a row."""
    figure, axes = panels(len(images), MOST, width=1, height=1.2)
    for axis, image, title in zip(axes, images, titles, strict=True):
        show(axis, image)
        axis.set_title(title, fontsize=7, pad=2, loc="center")
    return save(figure, path)


def show(axis: plt.Axes, image: Tensor, **where: Any) -> None:
    """Draw an image (C, H, W), stretched to [0, 1]. where: settings of `imshow`; without any it fills the axes."""
    pixels = stretched(image[None])[0].permute(1, 2, 0).numpy()
    axis.axis("off")
    axis.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=1, **where)
