"""Pictures of a benchmark: what a defense protects against what it costs, and what each one lets through."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from simulator.reports.benchmark_table import strongest
from simulator.reports.equal_utility import settings, undefended
from simulator.reports.figures import draw_strips, save, strip_of, themed
from simulator.results.run import Run

COLUMNS = 8  # of images
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")  # Okabe and Ito (2008)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
ACCURACY, RECOVERED = "test accuracy", "share of private images recovered"
Style = dict[str, Any]


def draw_benchmark(record: Run, table: pd.DataFrame) -> list[Path]:
    """The figures of a benchmark, in `figures/`; one that has nothing to show is left out."""
    folder = record.path / "figures"
    folder.mkdir(exist_ok=True)
    themed()
    drawn = (
        frontier(table, folder / "frontier.png"),
        exposure(table, folder / "exposure.png"),
        defense_grid(record, folder / "reconstructions.png"),
        strength_curves(table, folder / "equal_utility.png"),
        epsilon_curves(table, folder / "epsilon.png"),
    )
    return [path for path in drawn if path is not None]


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A colour and a marker for each name, the same in every panel: no two names share both, up to 56 of them."""
    pairs = [(colour, marker) for marker, colour in product(MARKERS, COLOURS)]
    unique = list(dict.fromkeys(names))
    return {
        name: {"color": pairs[i % len(pairs)][0], "marker": pairs[i % len(pairs)][1]} for i, name in enumerate(unique)
    }


def frontier(table: pd.DataFrame, path: Path) -> Path | None:
    """Test accuracy against the share of images recovered by the strongest attack, with 95 % intervals."""
    rows = strongest(table).dropna(subset=["recovered_fraction", "test_accuracy"])
    if rows.empty:
        return None
    style, views = styles(rows.defense), list(dict.fromkeys(rows.threat_model))
    figure, axes = plt.subplots(1, len(views), figsize=(4.6 * len(views) + 3, 4.8), squeeze=False, sharey=True)
    for axis, view in zip(axes.flat, views, strict=True):
        own = rows[rows.threat_model == view]
        for _, row in own.iterrows():
            _point(axis, row, style[row["defense"]])
        steps = frontier_of(own).sort_values("test_accuracy")
        axis.plot(steps.test_accuracy, steps.recovered_fraction, color="0.4", linestyle="--", linewidth=1, zorder=0)
        axis.set(title=f"{view}: strongest attack on each defense", xlim=(-0.04, 1.04), ylim=(-0.06, 1.06))
        axis.set(xlabel=ACCURACY, ylabel=RECOVERED)
    _legend(figure, style)
    return save(figure, path)


def frontier_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The defenses that no other one beats in both: nobody is as accurate and leaks less."""
    accuracy, kept = rows.test_accuracy.to_numpy(), -rows.recovered_fraction.to_numpy()
    at_least = (accuracy[:, None] >= accuracy) & (kept[:, None] >= kept)
    better = (accuracy[:, None] > accuracy) | (kept[:, None] > kept)
    return rows[~(at_least & better).any(0)]


def exposure(table: pd.DataFrame, path: Path) -> Path | None:
    """For each defense what the attacker has who knows nothing of it, who knows it, and what he holds and doubts."""
    own = table[(table.target == "private") & (table["round"] == table["round"].max())]
    own = own.dropna(subset=["recovered_fraction"])
    if own.empty:
        return None
    names, views = list(dict.fromkeys(own.defense)), list(dict.fromkeys(own.threat_model))
    place = {name: -i for i, name in enumerate(names)}
    kinds = {"recovered, told nothing": ("recovered_fraction", False, COLOURS[0], "o"),
             "recovered, told the defense": ("recovered_fraction", True, COLOURS[1], "D"),
             "held, whoever is told": ("held_fraction", None, COLOURS[6], "|")}  # fmt: skip
    size = (3.2 * len(views) + 2, 0.19 * len(names) + 1.4)
    figure, axes = plt.subplots(1, len(views), figsize=size, squeeze=False, sharey=True)
    for axis, view in zip(axes.flat, views, strict=True):
        for label, (column, told, colour, marker) in kinds.items():
            rows = own[(own.threat_model == view) & (True if told is None else own.adaptive == told)]
            if column in rows:
                best = rows.groupby("defense", sort=False)[column].max()
                axis.scatter(best, best.index.map(place), c=colour, marker=marker, s=42, label=label, alpha=0.85)
        axis.set(title=view, xlim=(-0.04, 1.04), xlabel="share of private images", yticks=list(place.values()))
        axis.set_yticklabels(names, fontsize=7)
    axes.flat[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=7)
    return save(figure, path)


def strength_curves(table: pd.DataFrame, path: Path) -> Path | None:
    """What each defense lets through over its loss of accuracy, from its weakest setting to its strongest."""
    rows, plain = settings(table).dropna(subset=["recovered_fraction"]), undefended(table)
    if rows.empty:
        return None
    style, views = styles(rows.family), list(dict.fromkeys(rows.threat_model))
    figure, axes = plt.subplots(1, len(views), figsize=(4.6 * len(views) + 2.4, 4.4), squeeze=False, sharey=True)
    for axis, view in zip(axes.flat, views, strict=True):
        for family, own in rows[rows.threat_model == view].groupby("family", sort=False):
            axis.plot(-own.accuracy_difference, own.recovered_fraction, linewidth=1, markersize=6, **style[family])
        without = plain[plain.threat_model == view].recovered_fraction
        axis.axhline(without.max() if len(without) else 1.0, color="0.6", linestyle=":", linewidth=1)
        for loss in (0.01, 0.03, 0.10):
            axis.axvline(loss, color="0.85", linewidth=0.8, zorder=0)
        axis.set(title=view, ylim=(-0.04, 1.04), xlabel="loss of test accuracy to no defense", ylabel=RECOVERED)
        axis.set_xscale("symlog", linthresh=0.03)
        axis.set_xlim(-0.02, 1.0)
    _legend(figure, style)
    return save(figure, path)


def epsilon_curves(table: pd.DataFrame, path: Path) -> Path | None:
    """Recovered and accuracy over ε, with what Hayes et al. (2023) prove of any attacker."""
    rows = settings(table).dropna(subset=["recovered_fraction", "reconstruction_bound", "epsilon"])
    if rows.empty:
        return None
    panels = list(rows.groupby(["family", "threat_model"], sort=False))
    figure, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels) + 2, 3.6), squeeze=False, sharey=True)
    lines = {"reconstruction_bound": "upper bound", "recovered_fraction": "recovered", "test_accuracy": ACCURACY}
    for axis, ((family, view), own) in zip(axes.flat, panels, strict=True):
        own = own.sort_values("epsilon")
        for (column, label), style in zip(lines.items(), styles(lines).values(), strict=True):
            axis.plot(own.epsilon, own[column], label=label, **style)
        axis.set(title=f"{family}, {view}", xscale="log", xlabel="ε", ylim=(-0.04, 1.04))
    axes.flat[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return save(figure, path)


def _point(axis: plt.Axes, row: pd.Series, style: Style) -> None:
    """One defense, with its intervals in grey."""
    x, y = row["test_accuracy"], row["recovered_fraction"]
    wide = 0.0 if pd.isna(row["test_accuracy_ci95"]) else min(row["test_accuracy_ci95"], 1.0)
    below, above = (abs(y - row[f"recovered_fraction_{end}"]) for end in ("low", "high"))
    axis.errorbar(x, y, xerr=wide, yerr=[[below], [above]], fmt="none", ecolor="0.85", zorder=1)
    axis.scatter(x, y, s=46, color=style["color"], marker=style["marker"], zorder=2)


def _legend(figure: plt.Figure, style: dict[str, Style]) -> None:
    """All names, beside the last panel."""
    marks = [plt.Line2D([], [], linestyle="", **one) for one in style.values()]
    figure.axes[-1].legend(
        marks, list(style), loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=7,
        ncols=1 + len(style) // 24,
    )  # fmt: skip


def defense_grid(record: Run, path: Path) -> Path | None:
    """For every defense, private images of one client (or of all) above the best that any attack made of them.

    At the first seed and the last attacked round; the client from which most is recovered stands for its defense.
    """
    good = record.leakage[(record.leakage.status == "ok") & (record.leakage.target == "private")]
    good = good[(good.seed == good.seed.min()) & (good["round"] == good["round"].max())]
    strips = []
    for defense in dict.fromkeys(cell.scenario.defense for cell in record.cells.values()):
        rows = good[good.defense == defense]
        rows = rows[rows.client >= 0] if (rows.client >= 0).any() else rows
        if rows.empty:
            continue
        row = rows.sort_values(["recovered_fraction", "leakage"]).iloc[-1]
        title = f"{defense}: {row['recovered']} of {row['num_private']} recovered ({row['attack']})"
        strip = strip_of(record, row, title, most=COLUMNS)
        strips.append(strip if len(strip.private) else replace(strip, title=f"{defense}: the attacks returned nothing"))
    if not strips:
        return None
    across = 2 if len(strips) > 4 else 1
    return draw_strips(strips, path, columns=COLUMNS, across=across, image=0.62, line=1.75, captions=False)
