"""The tables of defenses.md and defenses_by_attack.md of docs/records, from the benchmark.csv of a finished run, and
that of defenses_equal_utility.md, from its equal_utility.csv:

python -m tests.benchmarks.defense_table runs/defenses/benchmark.csv
python -m tests.benchmarks.defense_table runs/equal_utility/equal_utility.csv

and that of label_counts_defended.md, from the folder of the profile `classes`:

python -m tests.benchmarks.defense_table runs/classes
"""

import sys
from pathlib import Path

import pandas as pd

ATTACKS = ("span", "ntk", "gradient_matching")
VIEWS = ("server", "server_history", "observer")


def share(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f}"


def strongest_rows(table: pd.DataFrame) -> list[list[str]]:
    """For every defense the strongest attack in each view, with the 95 % interval, what the defense costs, and the AUC
    of the server's membership test."""
    best = returning_most(table)
    views = [view for view in VIEWS if view in set(best.threat_model)]
    columns = [name for view in views for name in (view, "by", "held")]
    rows = [["defense", *columns, "accuracy", "difference", "ε", "AUC"]]
    for defense, own in best.groupby("defense", sort=False):
        cells = [f"`{defense}`"]
        for view in views:
            seen = own[own.threat_model == view]
            cells += _cells(seen.iloc[0]) if len(seen) else ["", "", ""]
        one = own.iloc[0]
        gained = (
            "" if defense == "none" or pd.isna(one.accuracy_difference) else f"{100 * one.accuracy_difference:+.1f}"
        )
        spent = own.dropna(subset=["epsilon"])
        against = "" if len(spent) == len(own) else " only"
        epsilon = "" if spent.empty else f"{spent.epsilon.max():.1f} {spent.privacy_unit.iloc[0]}"
        epsilon += f", {spent.threat_model.iloc[0]}{against}" if len(spent) and against else ""
        seen = table[(table.defense == defense) & (table.threat_model == "server") & (table.target == "private")]
        rows.append([*cells, share(one.test_accuracy), gained, epsilon, share(seen.membership_auc.max())])
    return rows


def returning_most(table: pd.DataFrame) -> pd.DataFrame:
    """For every defense and threat model the row of the attack that returns most of the private images, with the
    `held_fraction` of the one that holds most."""
    own = table[(table.target == "private") & (table["round"] == table["round"].max())]
    own = own.assign(held_fraction=own.groupby(["defense", "threat_model"]).held_fraction.transform("max"))
    ranked = own.sort_values(["recovered_fraction", "leakage"], na_position="first", kind="stable")
    return ranked.groupby(["defense", "threat_model"], sort=False).tail(1).sort_index()


def _cells(row: pd.Series) -> list[str]:
    """The share with its interval, the attack (*: told the defense), and the share that it holds."""
    if pd.isna(row.recovered_fraction):
        return ["", f"not attacked by {row.not_attacked_by}", ""]
    missing = "" if pd.isna(row.not_attacked_by) else f"; not by {row.not_attacked_by}"
    interval = (
        f"{row.recovered_fraction:.2f} ({share(row.recovered_fraction_low)}–{share(row.recovered_fraction_high)})"
    )
    return [interval, f"`{row.attack}`{'*' if row.adaptive else ''}{missing}", share(row.held_fraction)]


def by_attack(table: pd.DataFrame, views: list[str]) -> list[list[str]]:
    """For every defense what each attack recovers in each view, told nothing and told the defense; else empty."""
    own = table[(table.target == "private") & (table["round"] == table["round"].max())]
    kinds = [(attack, told) for attack in ATTACKS for told in (False, True)]
    rows = [["defense", *(f"`{attack}`{', told' if told else ''}" for attack, told in kinds)]]
    for defense, part in own.groupby("defense", sort=False):
        found = part.set_index(["threat_model", "attack", "adaptive"]).recovered_fraction
        cells = [[share(found.get((view, *kind), float("nan"))) for view in views] for kind in kinds]
        rows.append([f"`{defense}`", *(" / ".join(cell) if any(cell) else "" for cell in cells)])
    return rows


def equal_rows(equal: pd.DataFrame) -> list[list[str]]:
    """For every family what leaks, returned and with what is held, at the strongest setting within each loss of
    accuracy; "none" where every setting costs more."""
    losses = sorted(equal.accepted_loss.unique())
    views = [view for view in VIEWS if view in set(equal.threat_model)]
    rows = [["family", *(f"{view}, {100 * loss:.0f} pt" for view in views for loss in losses)]]
    for family, own in equal.groupby("family", sort=False):
        found = own.set_index(["threat_model", "accepted_loss"])
        rows.append([f"`{family}`", *(_leaks(found.loc[(view, loss)]) for view in views for loss in losses)])
    return rows


def _leaks(row: pd.Series) -> str:
    if pd.isna(row.setting):
        return "none"
    return f"{share(row.recovered_fraction)} / {share(row.held_fraction)} at {row.setting.partition('=')[2]}"


def class_rows(folder: Path) -> list[list[str]]:
    """For every defense, of each round that was attacked: the updates whose classes are counted, the share of the
    images in a wrong class, by equal counts where none are told, and by equal counts alone; at last what the defense
    costs. Means over seeds of means."""
    leakage, utility = (pd.read_parquet(folder / f"{name}.parquet") for name in ("leakage", "utility"))
    utility = utility[utility["round"] == utility["round"].max()]
    accuracy = utility.pivot(index="seed", columns="defense", values="test_accuracy")
    tried = leakage[(leakage.target == "private") & (leakage.status == "ok")].set_index(["round", "seed", "client"])
    equally = tried[tried.defense == "none"].floor_class_error
    rounds = tried.index.unique("round").sort_values()
    heads = [name for one in rounds for name in (f"counted, round {one}", "wrong", "equal counts")]
    rows = [["defense", *heads, "accuracy", "difference"]]
    for defense in sorted(accuracy, key=lambda name: name != "none"):
        cells = [f"`{defense}`"]
        for one in rounds:
            own = tried[tried.defense == defense].loc[[one]]
            equal = own.floor_class_error.fillna(equally)
            means = [found.groupby("seed").mean().mean() for found in (own.class_error.fillna(equal), equal)]
            cells += [f"{own.class_error.notna().sum()} of {len(own)}", *map(share, means)]
        gained = 100 * (accuracy[defense] - accuracy["none"]).mean()
        rows.append([*cells, share(accuracy[defense].mean()), f"{gained:+.1f}"])
    return rows


def markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *body))


def main(path: Path) -> None:
    if path.is_dir():
        print(markdown(class_rows(path)))
        return
    frame = pd.read_csv(path)
    if "accepted_loss" in frame:
        print(markdown(equal_rows(frame)))
        return
    print(markdown(strongest_rows(frame)))
    seen = [view for view in VIEWS if view in set(frame.threat_model)]
    print(f"\n{' / '.join(seen)}:\n\n{markdown(by_attack(frame, seen))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
