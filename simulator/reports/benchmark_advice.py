"""Sum up a benchmark in sentences: which defense, at which cost in accuracy, against which attacker, how sure.

A defense under which nothing was learned hides images for that reason, and is named apart. An attack has the images
that a verdict counts: those that it returns, as they are or up to what an eye overlooks, and those that it holds back.
"""

from dataclasses import replace

import pandas as pd

from simulator.reports.benchmark_table import LEAK, NONE, strongest
from simulator.reports.verdict import Verdict, verdict
from simulator.reports.verdict_words import listed
from simulator.rundir.run import Run

ACCEPTED = 0.03  # loss of accuracy that a defense may cost
LOST = 0.10  # loss from which on too little was learned to compare
LEARNED = 0.30  # gain of accuracy over no training, without a defense, below which such losses mean nothing
LOW, HIGH = "recovered_fraction_low", "recovered_fraction_high"
MOST = 6  # defenses that are named
UNLEARNED = "No conclusion: the task was not learned."


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """Return for every defense the strongest attack, with `leak`, the share of images that it has; the least first."""
    rows = strongest(table).dropna(subset=["recovered_fraction", "test_accuracy"])
    worst = rows.sort_values(LEAK, kind="stable").groupby("defense", sort=False).tail(1)
    return worst.sort_values([LEAK, HIGH], kind="stable")


def learned(table: pd.DataFrame) -> set[str]:
    """Return the defenses whose loss of accuracy is small enough to compare, or unknown."""
    return set(table[~(table.accuracy_difference < -LOST)].defense)


def benchmark_verdict(record: Run, table: pd.DataFrame) -> Verdict:
    """Return the verdict on the defenses that cost little enough, with the conclusion of the benchmark, where there is
    one, as its headline. Its other sentences stand first in what was shown, and are the run's own in place of remedies
    from our benchmark."""
    found = verdict(record.leakage[record.leakage.defense.isin(learned(table))], record.stopped)
    worst = only_learned(table) + found.headline
    said = advice(table, untrained(record.utility))
    if not said:
        return replace(found, headline=worst)
    headline, *others = [worst, *said] if said[0].startswith(UNLEARNED) else [said[0], *said[1:], worst]
    statements = {**found.statements, "shown": [*others, *found.of("shown")], "next": []}
    return replace(found, headline=headline, statements=statements)


def only_learned(table: pd.DataFrame) -> str:
    """Return a sentence on the one row that a verdict is of, where all others lost too much accuracy; else nothing."""
    rows = learned(table)
    if len(rows) != 1 or len(set(table.defense)) == 1:
        return ""
    (name,) = rows
    called = f"row {name!r}, without a defense," if name == NONE else f"row {name!r}"
    return f"This is {called} as all others cost more than {100 * LOST:.0f} points of accuracy. "


def untrained(utility: pd.DataFrame) -> float:
    """Return the accuracy before any training, the mean over seeds. utility: the table."""
    return float(utility[(utility["round"] == 0) & (utility.defense == NONE)].test_accuracy.mean())


def advice(table: pd.DataFrame, before: float) -> list[str]:
    """Return sentences, the conclusion first; none if a defense or the baseline is missing. before: the accuracy before
    any training."""
    rows = compared(table)
    plain, others = rows[rows.defense == NONE], rows[rows.defense != NONE]
    if plain.empty or others.empty:
        return []
    base = plain.iloc[0]
    if base.test_accuracy - before < LEARNED:
        return [
            f"{UNLEARNED} Without a defense accuracy is {base.test_accuracy:.2f} after "
            f"round {base['round']}, {before:.2f} before training, so that no cost in accuracy means anything: train "
            "for longer (federation.rounds, training.epochs), or attack a later round (adversary.when)."
        ]
    within = others[others.accuracy_difference >= -ACCEPTED - 1e-9]
    dearer = others[others.accuracy_difference.between(-LOST, -ACCEPTED - 1e-9, inclusive="left")]
    dearer = dearer[dearer.leak < min([base.leak, *within.leak])]
    useless = [name for name in others.defense if name not in learned(table)]
    lines = [_conclusion(within, base), *_nearly(within)]
    if len(dearer):
        lines.append(f"Less comes through, for {100 * ACCEPTED:.0f} to {100 * LOST:.0f} points: {_briefly(dearer)}.")
    if useless:
        lines.append(
            f"Not compared: {_named(useless)} cost more than {100 * LOST:.0f} points of accuracy, and an update that "
            "taught the network little hides images for that alone."
        )
    return [*lines, _how_sure(rows)]


def _conclusion(within: pd.DataFrame, plain: pd.Series) -> str:
    little = f"at most {100 * ACCEPTED:.0f} points of accuracy"
    if within.empty:
        return f"None of the defenses costs {little}."
    best = within.iloc[0]
    if not best.leak < plain.leak:
        least = f"{plain.leak:.0%} of the private images"
        return f"None of the defenses that cost {little} lets less through than no defense: {least}."
    interval = members = missing = ""
    if pd.notna(best[HIGH]):
        ends = f"{best[LOW]:.0%} to {best[HIGH]:.0%}"
        interval = f" (95 % interval: {ends})"
        if best.recovered_fraction < best.leak:
            interval = f" (returned: {best.recovered_fraction:.0%}, with a 95 % interval of {ends})"
    if pd.notna(best.get("membership_auc")):
        members = f" Members are told from others with an AUC of {best.membership_auc:.2f} (0.5: not at all)."
    if pd.notna(best.get("not_attacked_by")):
        missing = f" Not attacked by {best.not_attacked_by}."
    return (
        f"{best.defense} lets least through of what costs {little}: {best.leak:.0%} of the private images{interval}, "
        f"and {plain.leak:.0%} without a defense. The strongest attack on it is {best.attack}"
        f"{', told the defense' if best.adaptive else ''} ({best.threat_model}). "
        f"Accuracy is {best.test_accuracy:.2f} ({_points(best.accuracy_difference)}).{members}{missing}"
    )


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points"


def _briefly(rows: pd.DataFrame) -> str:
    shown = [f"{row.defense} {row.leak:.0%} ({_points(row.accuracy_difference)})" for _, row in rows[:3].iterrows()]
    return ", ".join(shown)


def _nearly(within: pd.DataFrame) -> list[str]:
    """Name the next defenses, and those that the intervals do not tell from the best."""
    if len(within) < 2:
        return []
    best, rest = within.iloc[0], within.iloc[1:]
    # what is not returned has no interval: that of what is returned lies as far from its share
    at_least = rest[LEAK] - (rest.recovered_fraction - rest[LOW])
    alike = rest[at_least <= best[LEAK] + (best[HIGH] - best.recovered_fraction)].defense.tolist()
    more = f" The intervals do not tell it from {_named(alike)}." if alike else ""
    return [f"Next: {_briefly(rest)}.{more}"]


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
