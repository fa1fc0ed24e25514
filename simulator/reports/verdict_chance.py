"""What a verdict says of scores that it does not count: those that chance, or a guess at the classes, explains."""

import pandas as pd

from simulator.reports.exposure_rows import CHANCE, MEASURES
from simulator.reports.verdict_words import LOOSER, counted, whose

NOTABLE = 0.05  # of leakage above both floors, from which on it is explained at all


def most_unbeaten(good: pd.DataFrame) -> str:
    """The largest count that is no more than chance, as "1 of 8 images"; "" where all counts are 0."""
    if not (good.chance > 0).any():
        return ""
    row = good.loc[good.chance.idxmax()]
    return f"{row.chance:.0f} of {counted(row.num_private, 'image')}"


def chance_lines(good: pd.DataFrame) -> list[str]:
    """Sentences: one for every way in which counts are explained, of the largest, and one on leakage."""
    lines = []
    rows = good[good.chance > 0]
    for _, own in rows.groupby("explained", sort=False):
        row = own.loc[own.chance.idxmax()]
        lines.append(f"{_count(row)}: {_why(row)}, and not counted")
    return [*lines, *_leakage(good)]


def _count(row: pd.Series) -> str:
    name = next(name for name in MEASURES if row[name] == row.chance)
    how = f" {LOOSER[name][0]}" if name in LOOSER and row.chance > row.recovered else ""
    return (
        f"attack {row.attack!r} has {row.chance:.0f} of {counted(row.num_private, 'image')} of {whose(row.client)} in "
        f"round {row['round']}{how}"
    )


def _why(row: pd.Series) -> str:
    if row.explained == "floor":
        return "no more than an attacker has who knows nothing"
    if row.explained == "classes":
        return "what a guess at the classes gives: other images of these classes are hit as often"
    return "no more than the same images have of other people's"


def _leakage(good: pd.DataFrame) -> list[str]:
    """Where public images of the same classes leak more than half of what an attack does beyond the floor, and no more
    of the private images is told than of others of their classes."""
    floor = good[["floor_leakage", "mean_image_leakage"]].max(axis=1)
    beyond = good.leakage - floor
    rows = good[(beyond > NOTABLE) & (good.null_p > CHANCE) & (good.class_floor_leakage - floor > beyond / 2)]
    if rows.empty:
        return []
    row = rows.loc[rows.leakage.idxmax()]
    return [
        f"leakage of {row.leakage:.2f} ({row.attack!r}, {whose(row.client)}, round {row['round']}) is what a guess at "
        f"the classes gives: public images of the same classes leak {row.class_floor_leakage:.2f}, and other images of "
        f"these classes are told as well (p = {row.null_p:.2f})"
    ]
