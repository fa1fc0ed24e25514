"""Pictures of a run: reconstruction curves against the floor, leakage over rounds, and the images themselves."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only: works without a display

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from torch import Tensor

from simulator.evaluation.truth import Truth
from simulator.results.keys import ObservationKey
from simulator.results.ledger import LEAKAGE_COLUMNS, SAMPLE_COLUMNS
from simulator.results.record import Record
from simulator.results.storage import load_images

GRID_COLUMNS = 10
PANEL_COLUMNS = 4
FLOOR_COLOUR = "0.55"
KNOW_NOTHING = {"floor_l2": ("--", "floor: public images"), "mean_image_l2": (":", "floor: their mean")}


def draw_figures(record: Record) -> list[Path]:
    """Draw every figure of a run into its `figures/` folder; returns their paths."""
    folder = record.path / "figures"
    folder.mkdir(exist_ok=True)
    sns.set_theme(context="paper", style="whitegrid", palette="colorblind")
    good = record.leakage[record.leakage.status == "ok"]
    if good.empty:
        return []
    paths = [curves(record.samples, folder), leakage_over_rounds(good, folder)]
    for (threat, attack, target), rows in good.groupby(["threat_model", "attack", "target"]):
        name = "_".join(["reconstructions", threat, attack, *([] if target == "private" else [target])])
        paths.append(image_grid(record, rows, folder / f"{name}.png"))
    return paths


def curves(samples: pd.DataFrame, folder: Path) -> Path:
    """Sorted L2 distances of each private set (Loo et al. 2024, figure 2), with those of who knows nothing in grey."""
    panels = samples.assign(panel=panel_titles(samples), threat=samples.threat_model).groupby(["threat", "panel"])
    figure, axes = _panels(len(panels))
    floors = {name: drawn for name, drawn in KNOW_NOTHING.items() if name in samples}  # older runs have the first alone
    for axis, ((threat, panel), group) in zip(axes, panels, strict=False):
        for _, cell in group.groupby(["round", "client", "seed"]):
            rank = np.arange(1, len(cell) + 1)
            for name, (style, _) in floors.items():
                axis.plot(rank, np.sort(cell[name]), color=FLOOR_COLOUR, linestyle=style, linewidth=1)
            axis.plot(rank, np.sort(cell.l2), color=sns.color_palette()[0], alpha=0.8)
        axis.plot([], [], color=sns.color_palette()[0], label="reconstructed")
        for style, label in floors.values():
            axis.plot([], [], color=FLOOR_COLOUR, linestyle=style, label=label)
        axis.set(title=f"{threat}, {panel}", ylim=(0, None))
        axis.set(xlabel="private image, easiest first", ylabel="L2 distance")
        axis.legend()
    return save(figure, folder / "curves.png")


def leakage_over_rounds(leakage: pd.DataFrame, folder: Path) -> Path:
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
        axis.set_ylabel("leakage (0: floor, 1: exact)")
        if (legend := axis.get_legend()) is not None:
            legend.remove()
    axes[min(len(panels), PANEL_COLUMNS) - 1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return save(figure, folder / "leakage_by_round.png")


def panel_titles(frame: pd.DataFrame) -> pd.Series:
    """What tells one panel from another: attack, defense, target and the swept settings other than the seed."""
    known = {"cell", "panel", *LEAKAGE_COLUMNS, *SAMPLE_COLUMNS}
    titles = frame.attack + frame.defense.map(lambda name: "" if name == "none" else f", {name}")
    titles += frame.target.map(lambda name: "" if name == "private" else f", {name} images")
    for key in frame.columns:
        if key not in known:
            titles += f"\n{key.rpartition('.')[2]} = " + frame[key].astype(str)
    return titles


def _panels(count: int) -> tuple[plt.Figure, list[plt.Axes]]:
    """A figure with so many panels in rows of four; the rest of the last row is left empty."""
    columns = min(count, PANEL_COLUMNS)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns + 1.5, 3.4 * rows), squeeze=False)
    for axis in axes.flat[count:]:
        axis.axis("off")
    return figure, list(axes.flat)


def image_grid(record: Record, rows: pd.DataFrame, path: Path) -> Path:
    """Each row's private (or distilled) images, above what was made of them, the best first."""
    blocks = []
    for _, row in rows.head(8).iterrows():
        cell = row.get("cell", "")
        key = ObservationKey.of(row)
        found = load_images(record.store(cell).reconstruction_path(key, row["attack"]))
        blocks.append((title_of(row, cell), row["target"], *best_pairs(record, row, cell, found)))
    columns = min(GRID_COLUMNS, max(len(truth) for _, _, truth, _, _ in blocks))
    figure = plt.figure(figsize=(0.95 * columns + 0.3, 2.6 * len(blocks) + 0.3))
    outer = figure.add_gridspec(len(blocks), 1, hspace=0.28, top=0.97, bottom=0.01, left=0.02, right=0.98)
    for line, (title, target, truth, guesses, l2) in enumerate(blocks):
        inner = outer[line].subgridspec(2, columns, hspace=0.2, wspace=0.08)
        for column in range(min(columns, len(truth))):
            top, bottom = figure.add_subplot(inner[0, column]), figure.add_subplot(inner[1, column])
            show(top, truth[column])
            show(bottom, guesses[column])
            bottom.set_title(f"L2 {l2[column]:.2f}", fontsize=6, pad=2)
            if column == 0:
                top.set_title(title, fontsize=8, loc="left", pad=4)
                for axis, name in ((top, target), (bottom, "reconstructed")):
                    axis.annotate(
                        name, (-0.06, 0.5), xycoords="axes fraction", fontsize=6, rotation=90, va="center", ha="right"
                    )
    return save(figure, path, tight=False)


def image_sheet(images: Tensor, titles: list[str], path: Path) -> Path:
    """Images (N, C, H, W) in [0, 1], each under its title, ten in a row."""
    columns = min(GRID_COLUMNS, len(images))
    rows = -(-len(images) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(columns, 1.2 * rows), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, image, title in zip(axes.flat, images, titles, strict=False):
        show(axis, image)
        axis.set_title(title, fontsize=7, pad=2)
    return save(figure, path)


def best_pairs(
    record: Record, row: pd.Series, cell: str, found: Tensor, most: int = GRID_COLUMNS
) -> tuple[Tensor, Tensor, np.ndarray]:
    """(private or distilled images, as the row's target says, their matched reconstructions, L2), closest first, of one
    row of the leakage table."""
    samples = record.samples
    samples = samples[samples.cell == cell] if cell else samples
    keys = ["round", "client", "threat_model", "attack", "target"]
    own = samples[np.logical_and.reduce([samples[key] == row[key] for key in keys])]
    own = own[own.match >= 0].sort_values("l2").head(most)
    key = ObservationKey.of(row)
    clients = record.private_clients(key, cell)
    if row["target"] == "distilled":
        truth = record.store(cell).load_distilled(key.round, clients)
        assert truth is not None  # the row was scored against them
    else:
        truth = Truth.of(record.cells[cell].scenario, clients, clients).private
    return truth[own.image.tolist()], found[own.match.tolist()], own.l2.to_numpy()


def title_of(row: pd.Series, cell: str) -> str:
    who = "all clients" if row["client"] < 0 else f"client {row['client']}"
    count = f"{row['recovered']} of {row['num_private']} recovered, leakage {row['leakage']:.2f}"
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
