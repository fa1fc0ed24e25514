"""Strips of images: private ones above what an attack made of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from torch import Tensor

from attacks.interface.pictures import stretched
from simulator.reports.drawing import Drawn, panels, save
from simulator.results.formats import load_images
from simulator.results.keys import ObservationKey
from simulator.rundir.exposure_rows import worst_first
from simulator.rundir.run import Run

GRID_COLUMNS, FEWEST_COLUMNS = 10, 6  # fewer would cut the titles
MOST_STRIPS = 8  # in one figure
TITLE, CAPTION, GAP, LABEL = 0.26, 0.2, 0.05, 0.22  # inches
NOTHING = "nothing returned"


@dataclass(frozen=True, eq=False)
class Strip:
    """Private images above what was made of them. private, guesses: (K, C, H, W) in [0, 1], in the order to show; l2:
    (K,), their distances. label: what the upper images are, written beside the first. Where nobody has the private
    images, `private` is None and the guesses stand alone. total: pairs that there are, those not shown among them."""

    title: str
    private: Tensor | None
    guesses: Tensor
    l2: np.ndarray
    label: str = "private"
    total: int = 0

    def __len__(self) -> int:
        return len(self.guesses)

    @property
    def heading(self) -> str:
        """The title, and how many of how many images are shown, where that is not all of them."""
        if not len(self):
            return f"{self.title}: {NOTHING}"
        which = "the first" if self.private is None else "the closest"
        return f"{self.title} ({which} {len(self)} of {self.total} shown)" if self.total > len(self) else self.title

    def lines(self, columns: int) -> Iterator["Strip"]:
        """In pieces of at most `columns` pairs; the heading stands above the first, also where there is no image."""
        for start in range(0, max(len(self), 1), columns):
            part = slice(start, start + columns)
            private = None if self.private is None else self.private[part]
            title = "" if start else self.heading if len(self) else self.title
            yield replace(self, title=title, private=private, guesses=self.guesses[part], l2=self.l2[part], total=0)


def strip_of(record: Run, row: pd.Series, title: str, label: str = "private", most: int = GRID_COLUMNS) -> Strip:
    """Of one row of the leakage table at most `most` matched reconstructions, the closest first, with their images:
    private ones or distilled ones, as the row's target says. Where the row was compared with none: the best ones."""
    cell, key = row.get("cell", ""), ObservationKey.of(row)
    path = record.store(cell).reconstruction_path(key, row["attack"])
    samples = record.samples
    keys = ["round", "client", "threat_model", "attack", "target", *(["cell"] if cell else [])]
    own = samples[np.logical_and.reduce([samples[name] == row[name] for name in keys])]
    if own.empty:
        found = load_images(path)
        return Strip(title, None, found[:most], np.full(min(most, len(found)), np.nan), label, len(found))
    matched = own[own.match >= 0].sort_values("l2", kind="stable")
    shown, found = matched.head(most), load_images(path)
    private = scored_against(record, row)[shown.image.tolist()]
    return Strip(title, private, found[shown.match.tolist()], shown.l2.to_numpy(), label, len(matched))


def scored_against(record: Run, row: pd.Series) -> Tensor:
    """The images (N, C, H, W) that a row was scored against, in the order of the column `image` of samples."""
    cell, key = row.get("cell", ""), ObservationKey.of(row)
    if row["target"] == "distilled":
        store = record.store(cell)
        images = store.load_distilled(key.round, store.recorded(key).clients)
    else:
        images = record.private_images(key, cell)
    assert images is not None  # the row was scored against them
    return images


def who(client: int) -> str:
    """Whose images: of a client, or of all of a round together."""
    return "all clients" if client < 0 else f"client {client}"


def where_of(row: pd.Series) -> str:
    """Client, round and cell of a row, in words."""
    pairs = (part.partition("=") for part in str(row.get("cell", "") or "").split(","))
    cell = ", ".join(f"{key.replace('_', ' ')} {value}".strip() for key, _, value in pairs)
    return f"{who(row['client'])}, round {row['round']}{f' ({cell})' if cell else ''}"


def title_of(row: pd.Series) -> str:
    """Where a row is from, and what it says."""
    if pd.isna(row.get("recovered")):
        return f"{where_of(row)}: {row['num_reconstructed']} images found"
    held, recovered = row.get("held"), row["recovered"]
    more = f", {held} held" if not pd.isna(held) and held > recovered else ""
    return f"{where_of(row)}: {recovered} of {row['num_private']} recovered{more}, leakage {row['leakage']:.2f}"


def image_grid(record: Run, rows: pd.DataFrame, path: Path) -> Drawn:
    """Each row's private (or distilled) images, above what was made of them: the worst rows, the best images first."""
    shown = worst_first(rows).head(MOST_STRIPS)
    label = str(rows["target"].iloc[0])
    strips = [strip_of(record, row, title_of(row), label) for _, row in shown.iterrows()]
    columns = min(GRID_COLUMNS, max([FEWEST_COLUMNS, *map(len, strips)]))
    of = f"{len(shown)} of {len(rows)} updates are shown, the worst first" if len(rows) > len(shown) else ""
    draw_strips(strips, path, columns=columns, title=of)
    first = shown.iloc[0]
    what = f"What {first['attack']} made of what the {first['threat_model']} sees: {label} images above reconstructions"
    return Drawn(
        path,
        "Reconstructions",
        f"{what}{'; ' + of if of else ''}.",
        f"{what}. {'; '.join(strip.heading for strip in strips)}.",
    )


def draw_strips(
    strips: Sequence[Strip],
    path: Path,
    *,
    columns: int = GRID_COLUMNS,
    across: int = 1,
    image: float = 0.95,
    captions: bool = True,
    title: str = "",
) -> Path:
    """Image sheet of strips below and beside each other; those of more than `columns` pairs take more lines, one
    without images takes a line of text.

    across: strips side by side. image: width of an image, in inches. captions: whether each pair has its distance
    below. title: of the sheet.
    """
    lines = [part for strip in strips for part in strip.lines(columns)]
    rows = [lines[start : start + across] for start in range(0, len(lines), across)]
    heights = [max(_height(line, image, captions) for line in row) for row in rows]
    wide = LABEL + columns * (image + GAP) + 0.15
    width, height = wide * across, sum(heights) + (0.35 if title else 0.05)
    figure = plt.figure(figsize=(width, height))
    sheet = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))  # in inches: axes of its own cost 20 ms
    sheet.axis("off")
    if title:
        sheet.text(LABEL, height - 0.2, title, fontsize=10, va="center", weight="bold")
    top = height - (0.35 if title else 0.05)
    for row, tall in zip(rows, heights, strict=True):
        for place, line in enumerate(row):
            _draw_line(sheet, line, (place * wide, top), image, captions)
        top -= tall
    return save(figure, path)


def _height(line: Strip, image: float, captions: bool) -> float:
    """Of a line, in inches."""
    title = TITLE if line.title else 0.0
    if not len(line):
        return 2 * TITLE
    images = image + GAP if line.private is None else 2 * (image + GAP)
    return title + images + (CAPTION if captions else 0.0) + 0.12


def _draw_line(sheet: plt.Axes, line: Strip, corner: tuple[float, float], image: float, captions: bool) -> None:
    """One line of pairs, its upper left corner at `corner`; the units of the sheet are inches."""
    left, top = corner[0] + LABEL, corner[1]
    if line.title:
        sheet.text(left, top - 0.13, line.title, fontsize=9.5, va="center")
        top -= TITLE
    if not len(line):
        sheet.text(left, top - 0.08, NOTHING, fontsize=9, va="center", color="0.4", style="italic")
        return
    images = {} if line.private is None else {line.label: line.private}
    images["reconstructed"] = line.guesses
    for label, pixels in images.items():
        sheet.text(left - 0.04, top - image / 2, label, fontsize=9, rotation=90, va="center", ha="right")
        for column, one in enumerate(pixels):
            start = left + column * (image + GAP)
            show(sheet, one, extent=(start, start + image, top - image, top), aspect="auto")
        top -= image + GAP
    for column, l2 in enumerate(line.l2 if captions and line.private is not None else ()):
        middle = left + column * (image + GAP) + image / 2
        sheet.text(middle, top - 0.06, f"L2 {l2:.2f}", fontsize=8.5, ha="center", va="center")


def image_sheet(images: Tensor, titles: list[str], path: Path) -> Path:
    """Images (N, C, H, W) in [0, 1], each under its title, ten in a row."""
    figure, axes = panels(len(images), GRID_COLUMNS, width=1, height=1.2)
    for axis, image, title in zip(axes, images, titles, strict=True):
        show(axis, image)
        axis.set_title(title, fontsize=7, pad=2, loc="center")
    return save(figure, path)


def show(axis: plt.Axes, image: Tensor, **where: Any) -> None:
    """An image (C, H, W) in [0, 1], stretched to it. where: settings of `imshow`; without any it fills the axes."""
    pixels = stretched(image[None])[0].permute(1, 2, 0).numpy()
    axis.axis("off")
    axis.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=1, **where)
