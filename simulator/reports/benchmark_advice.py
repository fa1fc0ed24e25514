"""Sum up a benchmark in sentences: which defense, at which cost in accuracy, against which attacker, how sure.

A defense under which nothing was learned hides images for that reason, and is named apart. An attack has the images
that it returns and those that it holds, whether it vouches for them or not.
"""

import pandas as pd

from simulator.reports.benchmark_table import NONE, strongest
from simulator.reports.verdict_words import listed

ACCEPTED = 0.03  # loss of accuracy that a defense may cost
LOST = 0.10  # loss from which on too little was learned to compare
LEAK, LOW, HIGH = "leak", "recovered_fraction_low", "recovered_fraction_high"
MOST = 6  # defenses that are named


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """Return for every defense the strongest attack, with `leak`, the share of images that it has; the least first."""
    rows = strongest(table).dropna(subset=["recovered_fraction", "test_accuracy"])
    held = rows.held_fraction if "held_fraction" in rows else rows.recovered_fraction
    rows = rows.assign(leak=rows.recovered_fraction.combine(held, max))
    worst = rows.sort_values(LEAK, kind="stable").groupby("defense", sort=False).tail(1)
    return worst.sort_values([LEAK, HIGH], kind="stable")


def learned(table: pd.DataFrame) -> set[str]:
    """Return the defenses whose loss of accuracy is small enough to compare, or unknown."""
    if "accuracy_difference" not in table:
        return set(table.defense)
    return set(table[~(table.accuracy_difference < -LOST)].defense)


def advice(table: pd.DataFrame) -> list[str]:
    """Return sentences, the conclusion first; none if a defense or the baseline is missing."""
    rows = compared(table)
    plain, others = rows[rows.defense == NONE], rows[rows.defense != NONE]
    if plain.empty or others.empty:
        return []
    within = others[others.accuracy_difference >= -ACCEPTED - 1e-9]
    useless = [name for name in others.defense if name not in learned(table)]
    lines = [_conclusion(within, plain.iloc[0]), *_nearly(within)]
    if useless:
        lines.append(
            f"Not compared: {_named(useless)} cost more than {100 * LOST:.0f} points of accuracy, and an update that "
            "taught the network little hides images for that alone."
        )
    return [*lines, _how_sure(rows)]


def _conclusion(within: pd.DataFrame, plain: pd.Series) -> str:
    those = f"those that cost at most {100 * ACCEPTED:.0f} points of accuracy"
    if within.empty:
        return f"No defense is among {those}."
    best = within.iloc[0]
    if not best.leak < plain.leak:
        return f"None of {those} lets less through than no defense: {plain.leak:.0%} of the private images."
    interval = members = missing = ""
    if pd.notna(best[HIGH]):
        interval = f" (recovered: 95 % interval {best[LOW]:.0%} to {best[HIGH]:.0%})"
    if pd.notna(best.get("membership_auc")):
        members = f" Members are told from others with an AUC of {best.membership_auc:.2f} (0.5: not at all)."
    if pd.notna(best.get("not_attacked_by")):
        missing = f" Not attacked by {best.not_attacked_by}."
    return (
        f"{best.defense} lets least through of {those}: {best.leak:.0%} of the private images{interval} to the "
        f"strongest attack on it ({best.attack}{', told the defense' if best.adaptive else ''}, {best.threat_model}), "
        f"{plain.leak:.0%} without a defense, at {_points(best.accuracy_difference)} of accuracy "
        f"({best.test_accuracy:.2f}).{members}{missing}"
    )


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points"


def _nearly(within: pd.DataFrame) -> list[str]:
    """Name the next defenses, and those that the intervals do not tell from the best."""
    if len(within) < 2:
        return []
    best, rest = within.iloc[0], within.iloc[1:]
    shown = [f"{row.defense} {row.leak:.0%} ({_points(row.accuracy_difference)})" for _, row in rest[:3].iterrows()]
    # held images have no interval
    at_least = rest[LOW].where(rest[LEAK] <= rest.recovered_fraction, rest[LEAK])
    alike = rest[at_least <= best[HIGH]].defense.tolist()
    more = f" The intervals do not tell it from {_named(alike)}." if alike else ""
    return [f"Next: {', '.join(shown)}.{more}"]


def _named(names: list[str]) -> str:
    more = len(names) - MOST
    return listed(names) if more <= 0 else f"{', '.join(names[:MOST])} and {more} more"


def _how_sure(rows: pd.DataFrame) -> str:
    seeds = int(rows.seeds.max())
    if seeds > 1:
        return f"How sure: intervals are over clients within {seeds} seeds."
    return (
        "How sure: one seed, so that intervals are over its few clients alone, and another seed may rank close "
        "defenses differently. Where all clients score the same, the interval is just what so few can exclude: "
        "0 of 4 clients leave up to 60 % open. Run the file without a profile, on all its seeds, to rank them."
    )
