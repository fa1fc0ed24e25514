"""Figures of strips: images above reconstructions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from torch import Tensor

from attacks.interface.normalization import stretched
from simulator.reports.drawing import Drawn, panels, save
from simulator.rundir.exposure_rows import worst_first
from simulator.rundir.run import Run
from simulator.rundir.strip import MOST, Strip, strip_of, title_of

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
