"""Pictures of a benchmark: what a defense protects against what it costs, and what each one lets through."""

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from scipy.sparse.csgraph import connected_components

from simulator.reports.figures import draw_strips, save, strip_of, themed
from simulator.results.record import Record

COLUMNS = 8  # of images
LETTER = 0.011  # of test accuracy: as wide as a letter of a name beside its point


def draw_benchmark(record: Record, table: pd.DataFrame) -> list[Path]:
    """frontier.png and reconstructions.png in `figures/`."""
    folder = record.path / "figures"
    folder.mkdir(exist_ok=True)
    themed()
    paths = [frontier(table[table.target == "private"], folder / "frontier.png")]
    grid = defense_grid(record, folder / "reconstructions.png")
    return paths + ([grid] if grid else [])


def frontier(table: pd.DataFrame, path: Path) -> Path:
    """Test accuracy against the share of images recovered by the strongest attack, with 95 % intervals over seeds."""
    views = sorted(table.threat_model.unique(), reverse=True)
    figure, axes = plt.subplots(1, len(views), figsize=(6.4 * len(views), 4.6), squeeze=False, sharey=True)
    for axis, view in zip(axes.flat, views, strict=True):
        rows = table[table.threat_model == view].dropna(subset=["recovered_fraction", "test_accuracy"])
        worst = rows.sort_values("recovered_fraction").groupby("defense", sort=False).tail(1)
        best = frontier_of(worst)
        axis.errorbar(
            worst.test_accuracy, worst.recovered_fraction, xerr=worst.test_accuracy_ci95.fillna(0),
            yerr=worst.recovered_fraction_ci95.fillna(0), fmt="none", ecolor="0.8", zorder=1,
        )  # fmt: skip
        colours = dict(zip(worst.defense, sns.husl_palette(len(worst), l=0.5), strict=True))
        named = {"x": "test_accuracy", "y": "recovered_fraction", "hue": "defense"}
        sns.scatterplot(worst, **named, palette=colours, s=70, ax=axis, legend=False)
        steps = best.sort_values("test_accuracy")
        axis.plot(steps.test_accuracy, steps.recovered_fraction, color="0.4", linestyle="--", linewidth=1, zorder=0)
        _label(axis, worst, colours)
        right = max(1.04, worst.test_accuracy.max() + LETTER * worst.defense.str.len().max())  # room for the last name
        axis.set(title=f"{view}: strongest attack on each defense", xlim=(-0.04, right), ylim=(-0.06, 1.12))
        axis.set(xlabel="test accuracy", ylabel="share of private images recovered")
    return save(figure, path)


def frontier_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The defenses that no other one beats in both: nobody is as accurate and leaks less."""
    accuracy, kept = rows.test_accuracy.to_numpy(), -rows.recovered_fraction.to_numpy()
    at_least = (accuracy[:, None] >= accuracy) & (kept[:, None] >= kept)
    better = (accuracy[:, None] > accuracy) | (kept[:, None] > kept)
    return rows[~(at_least & better).any(0)]


def _label(axis: plt.Axes, rows: pd.DataFrame, colours: dict[str, tuple[float, float, float]]) -> None:
    """Names beside the points, in their colours; those that would overlap are one list, away from the nearer edge."""
    rows = rows.sort_values("test_accuracy")
    accuracy, recovered = rows.test_accuracy.to_numpy(), rows.recovered_fraction.to_numpy()
    right = accuracy - accuracy[:, None]  # how far the second lies to the right of the first
    reach = 0.02 + LETTER * rows.defense.str.len().to_numpy()[:, None]
    near = (right >= 0) & (right <= reach) & (abs(recovered - recovered[:, None]) <= 0.05)
    for _, cluster in rows.groupby(connected_components(near, directed=False)[1]):
        low, last = cluster.recovered_fraction.iloc[0] < 0.5, cluster.iloc[-1]
        for line, name in enumerate(cluster.defense[::-1] if low else cluster.defense):
            axis.annotate(
                name,
                (last.test_accuracy, last.recovered_fraction),
                xytext=(6, (3 + 8 * line) * (1 if low else -1)),
                textcoords="offset points",
                va="bottom" if low else "top",
                fontsize=7,
                color=colours[name],
            )


def defense_grid(record: Record, path: Path) -> Path | None:
    """For every defense, private images of one client (or of all) above the best that any attack made of them.

    At the first seed and attacked round; the client from which most is recovered stands for its defense.
    """
    good = record.leakage[(record.leakage.status == "ok") & (record.leakage.target == "private")]
    good = good[(good.seed == good.seed.min()) & (good["round"] == good["round"].min())]
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
