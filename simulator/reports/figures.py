"""Pictures of a run: reconstruction curves against the uninformed baseline, leakage over rounds, and the images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only: works without a display

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.gridspec import GridSpecFromSubplotSpec
from torch import Tensor

from simulator.results.keys import ObservationKey
from simulator.results.run import Run
from simulator.results.schema import LEAKAGE, SAMPLES
from simulator.results.storage import load_images

GRID_COLUMNS, FEWEST_COLUMNS = 10, 4  # fewer would cut the titles
PANEL_COLUMNS = 4
FLOOR_COLOUR = "0.55"
BASELINES = {"floor_l2": ("--", "baseline: public images"), "mean_image_l2": (":", "baseline: their mean")}


def themed() -> None:
    sns.set_theme(context="paper", style="whitegrid", palette="colorblind")


def draw_figures(record: Run, say: Callable[[str], None] = print) -> list[Path]:
    """Draw every figure of a run into its `figures/` folder; returns their paths.

    One that cannot be drawn costs a line, which `say` is given, and nothing else.
    """
    folder = record.path / "figures"
    folder.mkdir(exist_ok=True)
    themed()
    good = record.leakage[record.leakage.status == "ok"]
    if good.empty:
        return []
    drawings: dict[str, Callable[[Path], Path]] = {
        "curves": partial(curves, record.samples),
        "leakage_by_round": partial(leakage_over_rounds, good),
    }
    for (threat, attack, target), rows in good.groupby(["threat_model", "attack", "target"]):
        name = "_".join(["reconstructions", threat, attack, *([] if target == "private" else [target])])
        drawings[name] = partial(image_grid, record, rows)
    attempts = (attempt(draw, folder / f"{name}.png", say) for name, draw in drawings.items())
    return [path for path in attempts if path is not None]


def attempt(draw: Callable[[Path], Path], path: Path, say: Callable[[str], None]) -> Path | None:
    """Where the figure was drawn; None, and a line that says why, where that failed."""
    try:
        return draw(path)
    except Exception as error:
        plt.close("all")
        say(f"figure {path.name} could not be drawn: {type(error).__name__}: {' '.join(str(error).split())}")
        return None


def curves(samples: pd.DataFrame, path: Path) -> Path:
    """Sorted L2 distances of each private set (Loo et al. 2024, figure 2), those of the uninformed baseline in grey."""
    panels = samples.assign(panel=panel_titles(samples), threat=samples.threat_model).groupby(["threat", "panel"])
    figure, axes = _panels(len(panels))
    drawn = {name: style for name, style in BASELINES.items() if name in samples}  # older runs have the first alone
    for axis, ((threat, panel), group) in zip(axes, panels, strict=False):
        for _, cell in group.groupby(["round", "client", "seed"]):
            rank = np.arange(1, len(cell) + 1)
            for name, (style, _) in drawn.items():
                axis.plot(rank, np.sort(cell[name]), color=FLOOR_COLOUR, linestyle=style, linewidth=1)
            axis.plot(rank, np.sort(cell.l2), color=sns.color_palette()[0], alpha=0.8)
        axis.plot([], [], color=sns.color_palette()[0], label="reconstructed")
        for style, label in drawn.values():
            axis.plot([], [], color=FLOOR_COLOUR, linestyle=style, label=label)
        axis.set(title=f"{threat}, {panel}", ylim=(0, None))
        axis.set(xlabel="private image, easiest first", ylabel="L2 distance")
        axis.legend()
    return save(figure, path)


def leakage_over_rounds(leakage: pd.DataFrame, path: Path) -> Path:
    """Leakage of every client in every round; the union of a round's clients is a line of its own."""
    frame = leakage.assign(
        who=leakage.client.map(lambda c: "all" if c < 0 else f"client {c}") + ", " + leakage.threat_model,
        panel=panel_titles(leakage),
    )
    panels = sorted(frame.panel.unique())
    figure, axes = _panels(len(panels))
    for axis, panel in zip(axes, panels, strict=False):
        own = frame[frame.panel == panel]
        sns.lineplot(own, x="round", y="leakage", hue="who", style="who", markers=True, dashes=False, ax=axis)
        axis.set(title=panel, ylim=(-0.02, 1.02), xticks=sorted(frame["round"].unique()))
        axis.set_ylabel("leakage (0: baseline, 1: exact)")
        if (legend := axis.get_legend()) is not None:
            legend.remove()
    axes[min(len(panels), PANEL_COLUMNS) - 1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return save(figure, path)


def panel_titles(frame: pd.DataFrame) -> pd.Series:
    """What tells one panel from another: attack, defense, target and the swept settings other than the seed."""
    known = {"cell", "panel", *LEAKAGE.columns, *SAMPLES.columns}
    titles = frame.attack + frame.defense.map(lambda name: "" if name == "none" else f", {name}")
    titles += frame.target.map(lambda name: "" if name == "private" else f", {name} images")
    for key in frame.columns:
        if key not in known:
            titles += f"\n{key.rpartition('.')[2]} = " + frame[key].astype(str)
    return titles


def _panels(
    count: int, most: int = PANEL_COLUMNS, width: float = 4.2, height: float = 3.4, margin: float = 1.5
) -> tuple[plt.Figure, list[plt.Axes]]:
    """A figure with so many panels in rows of at most `most`; the rest of the last row is left empty."""
    columns = min(count, most)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(width * columns + margin, height * rows), squeeze=False)
    for axis in axes.flat[count:]:
        axis.axis("off")
    return figure, list(axes.flat)


@dataclass(frozen=True, eq=False)
class Strip:
    """Private images above what was made of them. private, guesses: (K, C, H, W) in [0, 1], in the order to show; l2:
    (K,), their distances. label: what the upper images are, written beside the first."""

    title: str
    private: Tensor
    guesses: Tensor
    l2: np.ndarray
    label: str = ""

    def lines(self, columns: int) -> list["Strip"]:
        """In pieces of at most `columns` pairs; the title stands above the first, also where there is no image."""
        starts = range(0, max(len(self.private), 1), columns)
        parts = [slice(start, start + columns) for start in starts]
        return [
            replace(self, title="" if part.start else self.title, private=self.private[part],
                    guesses=self.guesses[part], l2=self.l2[part])
            for part in parts
        ]  # fmt: skip


def draw_strips(
    strips: Sequence[Strip],
    path: Path,
    *,
    columns: int = GRID_COLUMNS,
    across: int = 1,
    image: float = 0.95,
    line: float = 2.6,
    captions: bool = True,
) -> Path:
    """Image sheet of strips below and beside each other; those of more than `columns` pairs take more lines.

    across: strips side by side. image: width of an image, and line: height of a strip, in inches. captions: whether
    each pair has its distance below.
    """
    lines = [part for strip in strips for part in strip.lines(columns)]
    rows, gap = -(-len(lines) // across), 0.2 if captions else 0.06
    figure = plt.figure(figsize=(image * columns * across + 0.3, line * rows + 0.3))
    outer = figure.add_gridspec(rows, across, hspace=0.3, wspace=0.06, top=0.97, bottom=0.01, left=0.02, right=0.98)
    for index, part in enumerate(lines):
        place = outer[divmod(index, across)]
        _draw_line(figure, place.subgridspec(2, columns, hspace=gap, wspace=0.07), part, captions)
    return save(figure, path, tight=False)


def _draw_line(figure: plt.Figure, grid: GridSpecFromSubplotSpec, line: Strip, captions: bool) -> None:
    first = figure.add_subplot(grid[0, 0])  # it carries the title where there is no image, too
    first.axis("off")
    first.set_title(line.title, fontsize=8, loc="left", pad=4)
    for column, (private, guess, l2) in enumerate(zip(line.private, line.guesses, line.l2, strict=True)):
        top = first if column == 0 else figure.add_subplot(grid[0, column])
        bottom = figure.add_subplot(grid[1, column])
        show(top, private)
        show(bottom, guess)
        if captions:
            bottom.set_title(f"L2 {l2:.2f}", fontsize=6, pad=2)
        if column == 0 and line.label:
            _label(top, line.label)
            _label(bottom, "reconstructed")


def _label(axis: plt.Axes, text: str) -> None:
    axis.annotate(text, (-0.06, 0.5), xycoords="axes fraction", fontsize=6, rotation=90, va="center", ha="right")


def image_grid(record: Run, rows: pd.DataFrame, path: Path) -> Path:
    """Each row's private (or distilled) images, above what was made of them, the best first."""
    strips = [strip_of(record, row, title_of(row), label=row["target"]) for _, row in rows.head(8).iterrows()]
    columns = min(GRID_COLUMNS, max([FEWEST_COLUMNS, *(len(strip.private) for strip in strips)]))
    return draw_strips(strips, path, columns=columns)


def strip_of(record: Run, row: pd.Series, title: str, label: str = "", most: int = GRID_COLUMNS) -> Strip:
    """Of one row of the leakage table at most `most` matched reconstructions, the closest first, with their images:
    private ones or distilled ones, as the row's target says."""
    cell, key = row.get("cell", ""), ObservationKey.of(row)
    samples = record.samples
    samples = samples[samples.cell == cell] if cell else samples
    keys = ["round", "client", "threat_model", "attack", "target"]
    own = samples[np.logical_and.reduce([samples[name] == row[name] for name in keys])]
    own = own[own.match >= 0].sort_values("l2").head(most)
    store = record.store(cell)
    clients = store.recorded(key).clients
    if row["target"] == "distilled":
        truth = store.load_distilled(key.round, clients)
        assert truth is not None  # the row was scored against them
    else:
        truth = record.private_images(key, cell)
        assert truth is not None  # the row was scored against them
    found = load_images(store.reconstruction_path(key, row["attack"]))
    return Strip(title, truth[own.image.tolist()], found[own.match.tolist()], own.l2.to_numpy(), label)


def image_sheet(images: Tensor, titles: list[str], path: Path) -> Path:
    """Images (N, C, H, W) in [0, 1], each under its title, ten in a row."""
    figure, axes = _panels(len(images), GRID_COLUMNS, width=1, height=1.2, margin=0)
    for axis, image, title in zip(axes, images, titles, strict=False):
        show(axis, image)
        axis.set_title(title, fontsize=7, pad=2)
    return save(figure, path)


def title_of(row: pd.Series) -> str:
    who = "all clients" if row["client"] < 0 else f"client {row['client']}"
    held, recovered = row.get("held"), row["recovered"]
    more = f", {held} held" if not pd.isna(held) and held > recovered else ""
    count = f"{recovered} of {row['num_private']} recovered{more}, leakage {row['leakage']:.2f}"
    cell = row.get("cell", "")
    return f"{cell + ': ' if cell else ''}round {row['round']}, {who}: {count}"


def show(axis: plt.Axes, image: Tensor) -> None:
    pixels = image.permute(1, 2, 0).numpy()
    axis.axis("off")
    axis.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=1)


def save(figure: plt.Figure, path: Path, tight: bool = True) -> Path:
    if tight:
        figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
