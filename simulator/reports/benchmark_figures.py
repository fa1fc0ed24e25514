"""Figures of a benchmark: protection against cost, leaks of each defense, the same images under each defense."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from clients.local_update import load_data
from simulator.reports import drawing
from simulator.reports.benchmark_table import LEAK, settings, strongest
from simulator.reports.drawing import Drawn, Style, blank_sheet, draw_images
from simulator.results.disk import load_images
from simulator.results.keys import ALL, ObservationKey, owner
from simulator.rundir.exposure_rows import worst_first
from simulator.rundir.run import Run
from simulator.rundir.strip import Strip, cell_of

COLUMNS = 8  # of images
ACROSS, MOST_IN_ONE = 2, 5  # columns of lines where there are more lines than that
IMAGE, GAP, NAMES = 0.5, 0.03, 1.55  # inches; NAMES: of the text left of a line


def defense_grid(record: Run, path: Path) -> Drawn | None:
    """Draw the same private images under every defense, with their reconstructions by the best attack: of the client
    that is exposed worst without a defense, at the first seed and the last attacked round."""
    good = record.leakage[(record.leakage.status == "ok") & (record.leakage.target == "private")]
    good = good[(good.seed == good.seed.min()) & (good["round"] == good["round"].max())]
    if good.empty:
        return None
    ranked = worst_first(good)
    single = ranked[ranked.client != ALL]
    plain = single[single.defense == drawing.UNDEFENDED]
    first = next(rows for rows in (plain, single, ranked) if len(rows)).iloc[0]
    client, order = int(first["client"]), list(dict.fromkeys(cell.scenario.defense for cell in record.cells.values()))
    images = record.samples_of(first).sort_values("l2", kind="stable").image.head(COLUMNS).tolist()
    private = record.private_images(ObservationKey.of(first), cell_of(first))
    assert private is not None  # a benchmark has scenarios
    tried = (_line(record, ranked[ranked.defense == defense], client, images) for defense in order)
    lines = [line for line in tried if line is not None]
    _draw(private[images], lines, path)
    of = f"{owner(client)}, round {first['round']}, seed {first['seed']}"
    return Drawn(
        path,
        "The same images under every defense",
        f"The same {len(images)} of {len(private)} private images ({of}) and what the best attack makes of them under "
        "each defense. An empty frame: nothing returned that matches the image.",
        f"{of}: {'; '.join(f'{line.title}: {line.label}' for line in lines)}.",
    )


def _line(record: Run, rows: pd.DataFrame, client: int, images: Sequence[int]) -> Strip | None:
    """Return the line of one defense from its rows, the worst first; NaN if nothing was returned that matches the
    image. A defense that hides the client is attacked as the union of its round, in which its images have other
    numbers."""
    own = rows[rows.client == client]
    own = own if len(own) else rows[rows.client == ALL]
    if own.empty:
        return None
    row = own.iloc[0]
    cell = cell_of(row)
    clients = record.store(cell).recorded(ObservationKey.of(row)).clients
    sizes = load_data(record.cells[cell].client_config(use_gpu=False)).client_sizes
    before = clients[: clients.index(client)] if row["client"] == ALL and client in clients else ()
    start = sum(sizes[one] for one in before)
    matches = record.samples_of(row).set_index("image").reindex([start + image for image in images])
    found = load_images(record.store(cell).reconstruction_path(ObservationKey.of(row), row["attack"]))
    guesses = torch.full((len(images), *found.shape[1:]), torch.nan)
    for place, match in enumerate(matches.match.fillna(-1).astype(int)):
        if match >= 0:
            guesses[place] = found[match]
    union = "all clients, " if row["client"] == ALL and client != ALL else ""
    outcome = f"{row['recovered']} of {row['num_private']} ({union}{row['attack']})"
    return Strip(row["defense"], None, guesses, matches.l2.to_numpy(), outcome)


def _draw(private: Tensor, lines: Sequence[Strip], path: Path) -> None:
    """Draw the lines in columns, each below a line of private images."""
    across = ACROSS if len(lines) > MOST_IN_ONE else 1
    tall = -(-len(lines) // across)
    above = Strip("private", None, private, np.zeros(len(private)), label="")
    width, step = NAMES + len(private) * (IMAGE + GAP) + 0.2, IMAGE + 2 * GAP
    height = step * (tall + 1) + 0.1
    figure, sheet = blank_sheet(width * across, height)
    for number in range(across):
        left = number * width + NAMES
        for place, line in enumerate([above, *lines[number * tall : (number + 1) * tall]]):
            top = height - step * place - (0.06 if place else 0.0)
            middle, lift = top - IMAGE / 2, 0.09 if line.label else 0.0
            sheet.text(left - 0.08, middle + lift, line.title, fontsize=9, weight="bold", ha="right", va="center")
            sheet.text(left - 0.08, middle - 0.09, line.label, fontsize=9, color="0.3", ha="right", va="center")
            draw_images(sheet, line.guesses, (left, top), IMAGE, GAP)
    drawing.save(figure, path)


ACCURACY, TAKEN = "test accuracy", "share of private images that an attack has"
LIMITS = (-0.05, 1.05)  # of an axis that shows a share
WIDTH = 6.6  # inches of a panel beside which names stand


def draw_benchmark(record: Run, table: pd.DataFrame, say: Callable[[str], None] = print) -> list[Drawn]:
    """Draw the figures of a benchmark, as `draw_all` does."""
    look = drawing.styles(list(table.defense))
    drawings: dict[str, Callable[[Path], Drawn | None]] = {
        "frontier": partial(frontier, table, look),
        "exposure": partial(exposure, table),
        "reconstructions": partial(defense_grid, record),
        "equal_utility": partial(strength_curves, table),
        "epsilon": partial(epsilon_curves, table),
    }
    return drawing.draw_all(record.path, drawings, say)


def frontier(table: pd.DataFrame, look: dict[str, Style], path: Path) -> Drawn | None:
    """Draw test accuracy against the share of images that the strongest attack has, with 95 % intervals."""
    rows = strongest(table).dropna(subset=["recovered_fraction", "test_accuracy"])
    if rows.empty:
        return None
    views = list(dict.fromkeys(rows.threat_model))
    height = max(3.4, drawing.LINE * rows.defense.nunique() + 0.3) + 0.7  # as many names stand beside it
    figure, axes = drawing.panels(len(views), most=1, width=WIDTH, height=height)
    for axis, view in zip(axes, views, strict=True):
        own = rows[rows.threat_model == view]
        for _, row in own.iterrows():
            _point(axis, row, look[row["defense"]])
        steps = frontier_of(own[own.not_attacked_by.isna()]).sort_values("test_accuracy")
        axis.plot(steps.test_accuracy, steps[LEAK], color="0.4", linestyle="--", linewidth=1, zorder=0)
        axis.set(title=f"{view}: strongest attack on each defense", xlim=LIMITS, ylim=LIMITS)
        axis.set(xlabel=ACCURACY, ylabel=TAKEN)
    figure.tight_layout()
    for axis, view in zip(axes, views, strict=True):
        own = rows[rows.threat_model == view]
        points = zip(own.defense, zip(own.test_accuracy, own[LEAK], strict=True), strict=True)
        drawing.name_points(axis, dict(points), look)
    said = [
        f"{row.defense} ({row.threat_model}): accuracy {row.test_accuracy:.2f}, has {row.leak:.2f}"
        for row in frontier_of(rows[rows.not_attacked_by.isna()]).sort_values(LEAK).itertuples()
    ]
    return Drawn(
        drawing.save(figure, path),
        "Protection against cost",
        "What a defense protects against what it costs: the lower right corner is best. Dashed: the defenses that no "
        "other one beats in both. Hollow: an attack that may be the strongest gave no result. Dotted, down to a bar: "
        "what it returned as it is, without images that it held back or that an eye would know. Grey: 95 % intervals.",
        f"Test accuracy against the share of images that the strongest attack has. {'; '.join(said)}.",
    )


def frontier_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the defenses that no other one beats in both: none is as accurate and leaks less."""
    accuracy, kept = rows.test_accuracy.to_numpy(), -rows[LEAK].to_numpy()
    at_least = (accuracy[:, None] >= accuracy) & (kept[:, None] >= kept)
    better = (accuracy[:, None] > accuracy) | (kept[:, None] > kept)
    return rows[~(at_least & better).any(0)]


def exposure(table: pd.DataFrame, path: Path) -> Drawn | None:
    """Draw for each defense the images of an attacker who knows nothing of it, of one who knows it, and held ones."""
    own = table[(table.target == "private") & (table["round"] == table["round"].max())]
    own = own.dropna(subset=["recovered_fraction"])
    if own.empty:
        return None
    names, views = list(dict.fromkeys(own.defense)), list(dict.fromkeys(own.threat_model))
    place = {name: -i for i, name in enumerate(names)}
    kinds = {"recovered, told nothing": ("recovered_fraction", False, drawing.COLOURS[0], "o", 0.16),
             "recovered, told the defense": ("recovered_fraction", True, drawing.COLOURS[1], "D", -0.16),
             "held, whoever is told": ("held_fraction", None, "black", "|", 0.0)}  # fmt: skip
    figure, axes = drawing.panels(len(views), width=4.0, height=0.27 * len(names) + 1.2, sharey=True)
    for axis, view in zip(axes, views, strict=True):
        for label, (column, told, colour, marker, shift) in kinds.items():
            rows = own[(own.threat_model == view) & (True if told is None else own.adaptive == told)]
            if column in rows:
                best = rows.groupby("defense", sort=False)[column].max()
                heights = [place[name] + shift for name in best.index]
                axis.scatter(best, heights, c=colour, marker=marker, s=38, label=label, alpha=0.9)
        axis.set(title=view, xlim=LIMITS, xlabel="share of private images", yticks=list(place.values()))
        axis.set_ylim(0.6 - len(names), 0.6)
    axes[0].set_yticklabels(names)
    figure.tight_layout()
    drawing.legend_below(axes[0], columns=3)
    worst = own.loc[own.recovered_fraction.idxmax()]
    return Drawn(
        drawing.save(figure, path),
        "What each defense lets through",
        "What each defense lets through, to an attacker who was told nothing of it and to one who knows it; held: also "
        "what the attack found and did not return.",
        f"Share of private images recovered under {len(names)} defenses, from {own.recovered_fraction.min():.2f} to "
        f"{worst['recovered_fraction']:.2f} under {worst['defense']}.",
    )


def strength_curves(table: pd.DataFrame, path: Path) -> Drawn | None:
    """Draw the leak of each defense over its loss of accuracy, from its weakest setting to its strongest."""
    rows, best = settings(table).dropna(subset=["recovered_fraction"]), strongest(table)
    plain = best[best.defense == drawing.UNDEFENDED]
    if rows.empty:
        return None
    look, views = drawing.styles(list(rows.family)), list(dict.fromkeys(rows.threat_model))
    figure, axes = drawing.panels(len(views), most=1, width=WIDTH, height=3.8)
    for axis, view in zip(axes, views, strict=True):
        for family, own in rows[rows.threat_model == view].groupby("family", sort=False):
            axis.plot(-own.accuracy_difference, own[LEAK], linewidth=1, markersize=6, **look[family])
        without = plain[plain.threat_model == view][LEAK]
        axis.axhline(without.max() if len(without) else 1.0, color="0.6", linestyle=":", linewidth=1)
        for loss in (0.01, 0.03, 0.10):
            axis.axvline(loss, color="0.85", linewidth=0.8, zorder=0)
        axis.set(title=view, ylim=LIMITS, xlabel="loss of test accuracy to no defense", ylabel=TAKEN)
        axis.set_xscale("symlog", linthresh=0.03)
        axis.set_xlim(min(-0.02, float(-rows.accuracy_difference.max()) - 0.01), 1.0)
        axis.set_xticks(ticks := [0, 0.01, 0.03, 0.1, 0.3, 1.0], [f"{tick:g}" for tick in ticks])
    figure.tight_layout()
    for axis, view in zip(axes, views, strict=True):
        last = rows[rows.threat_model == view].groupby("family", sort=False).tail(1)
        points = zip(last.family, zip(-last.accuracy_difference, last[LEAK], strict=True), strict=True)
        drawing.name_points(axis, dict(points), look)
    return Drawn(
        drawing.save(figure, path),
        "Equal utility",
        "Each defense from its weakest setting to its strongest: what it lets through over the accuracy that it costs. "
        "Dotted: no defense.",
        f"Share of images that an attack has over loss of accuracy for {', '.join(look)}.",
    )


def epsilon_curves(table: pd.DataFrame, path: Path) -> Drawn | None:
    """Draw images recovered and accuracy over ε, with the bound of Hayes et al. (2023) for any attacker."""
    rows = settings(table).dropna(subset=["recovered_fraction", "reconstruction_bound", "epsilon"])
    if rows.empty:
        return None
    groups = list(rows.groupby(["family", "threat_model"], sort=False))
    figure, axes = drawing.panels(len(groups), sharey=True)
    lines = {
        "reconstruction_bound": ("upper bound", "black", "v"),
        "recovered_fraction": ("recovered", drawing.COLOURS[1], "s"),
        "test_accuracy": (ACCURACY, drawing.COLOURS[0], "o"),
    }
    for axis, ((family, view), own) in zip(axes, groups, strict=True):
        own = own.sort_values("epsilon")
        for column, (label, colour, marker) in lines.items():
            axis.plot(own.epsilon, own[column], label=label, color=colour, marker=marker)
        axis.set(title=f"{family}, {view}", xscale="log", xlabel="ε", ylim=LIMITS)
    figure.tight_layout()
    drawing.legend_below(axes[0], columns=3)
    return Drawn(
        drawing.save(figure, path),
        "What ε is worth",
        "What a guarantee of ε is worth: images recovered, the most that any attacker can recover, and test accuracy.",
        f"Images recovered, their upper bound and test accuracy over ε for {', '.join(dict.fromkeys(rows.family))}.",
    )


def _point(axis: plt.Axes, row: pd.Series, style: Style) -> None:
    """Draw one defense, with its intervals in grey."""
    x, y, returned = row["test_accuracy"], row[LEAK], row["recovered_fraction"]
    bars = [[abs(row[name] - row[f"{name}_{end}"])] for name in ("test_accuracy", "recovered_fraction")
            for end in ("low", "high")]  # fmt: skip
    axis.errorbar(x, y, xerr=bars[:2], fmt="none", ecolor="0.8", zorder=1)
    axis.errorbar(x, returned, yerr=bars[2:], fmt="none", ecolor="0.8", zorder=1)
    if returned < y:
        axis.plot(
            [x, x], [y, returned], color=style["color"], linestyle=":", linewidth=1, marker="_", markersize=12, zorder=2
        )
    tried = pd.isna(row.get("not_attacked_by"))
    face = style["color"] if tried else "none"
    axis.scatter(x, y, s=46, facecolors=face, edgecolors=style["color"], marker=style["marker"], zorder=2)
