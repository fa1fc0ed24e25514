"""Tables of a benchmark: benchmark.csv, the leaks and costs of each defense, with intervals; equal_utility.csv.

Scores come in clusters, clients within seeds, which the intervals respect. equal_utility.csv compares defenses at the
same cost in accuracy. Each family of `benchmark.strengths` is a defense at several strengths, in benchmark.csv the rows
FAMILY=VALUE. For an accepted loss of accuracy, the strongest setting counts whose mean loss to the same seeds without a
defense is no larger: in the order of the file, whatever it lets through; nothing is interpolated.
"""

from typing import Any

import numpy as np
import pandas as pd
import scipy  # its parts are imported where they are first used

from attacks import ATTACKS
from attacks.interface.torch_tools import numpy_generator
from clients.defenses.guarantee import Adversary
from simulator.reports.reconstruction_bound import ReconstructionBounds
from simulator.results.disk import write_atomically
from simulator.results.keys import ALL
from simulator.results.privacy import worst_columns
from simulator.results.schema import AT_SETTING, EQUAL_UTILITY, LEAKAGE, benchmark
from simulator.rundir.exposure_rows import ranked_means
from simulator.rundir.run import Run
from simulator.scenario.scenario import Scenario

LEVEL = 0.95
DRAWS = 2000  # of the bootstrap


def half_width(values: pd.Series) -> float:
    """Return half of the 95 % confidence interval of the mean (Student's t); NaN for fewer than two values."""
    count = values.count()
    return float(scipy.stats.t.ppf((1 + LEVEL) / 2, count - 1) * values.std() / np.sqrt(count))


def share_interval(values: pd.Series) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean of shares (Student's t), cut at 0 and 1, beyond which no mean
    share lies. NaN for fewer than two values."""
    mean, half = float(values.mean()), half_width(values)
    return (np.nan, np.nan) if np.isnan(half) else (max(0.0, mean - half), min(1.0, mean + half))


def cluster_interval(scores: pd.Series, least: float = 0.0, most: float = 1.0) -> tuple[float, float]:
    """Return the 95 % interval of a mean over seeds of means over clients.

    scores: one for each client, indexed by (seed, client), between `least` and `most`. Where they differ, a two-stage
    bootstrap: seeds are drawn with replacement, and in each of them its clients (Davison and Hinkley 1997, section
    3.8); the percentiles of the mean. Where all are the same value, which a bootstrap takes for certain, the exact
    interval of Clopper and Pearson (1934) for the share p of clients whose score is another one: 0 of n were seen, so
    p is at most 1 − 0.025^(1/n), and the mean at most p times the way to `least` or `most` away. Clients are counted,
    not images, as those of one client fall together. NaN where there is no score.
    """
    scores = scores.dropna()
    if scores.empty:
        return np.nan, np.nan
    if scores.nunique() == 1:
        value = float(scores.iloc[0])
        other = scipy.stats.binomtest(0, len(scores)).proportion_ci(LEVEL, method="exact").high
        return float(value - other * (value - least)), float(value + other * (most - value))
    clusters = [group.to_numpy() for _, group in scores.groupby(level="seed")]
    generator, tail = numpy_generator(0, "bootstrap"), 50 * (1 - LEVEL)
    chosen = generator.integers(0, len(clusters), (DRAWS, len(clusters)))
    means = np.empty(chosen.shape)
    for number, cluster in enumerate(clusters):
        own = chosen == number
        means[own] = generator.choice(cluster, (int(own.sum()), len(cluster))).mean(1)
    low, high = np.percentile(means.mean(1), [tail, 100 - tail])
    return float(low), float(high)


def paired_difference(scores: pd.Series, reference: pd.Series) -> pd.Series:
    """Subtract the scores of the same seed and client in the reference, both indexed by (seed, client). If no client is
    in both (a defense that hides clients is attacked as their union), subtract the seeds' means."""
    scores, reference = scores.dropna(), reference.dropna()
    common = scores.index.intersection(reference.index)
    if not len(common) and len(scores) and len(reference):
        by_seed = (one.groupby(level="seed").mean() for one in (scores, reference))
        scores, reference = (pd.concat({-1: one}, names=["client"]).swaplevel() for one in by_seed)
        common = scores.index.intersection(reference.index)
    return scores[common] - reference[common]


def sign_test(differences: pd.Series) -> float:
    """Return p of the exact two-sided sign test of the seeds' mean differences. Seeds without a difference are left
    out; NaN if none is left. With n seeds it is at least 2 / 2ⁿ."""
    means = differences.groupby(level="seed").mean() if len(differences) else differences
    positive, total = int((means > 0).sum()), int((means != 0).sum())
    return float(scipy.stats.binomtest(positive, total).pvalue) if total else np.nan


TABLE = "benchmark.csv"
LEAK = "leak"  # column of `strongest`
KEY = ["defense", "attack", "threat_model", "adaptive", "target", "round"]
ORDER = [True, True, True, True, False, True]  # which of them ascend
NONE = "none"
USUAL = ("span", "ntk", "gradient_matching")  # wherever anything is known to recover images, one of them is strongest
LONGEST_REASON = 100  # letters


def write_benchmark(record: Run) -> pd.DataFrame:
    """Write benchmark.csv of a finished run: a row per defense × attack × threat model × target × attacked round."""
    table = benchmark_table(record)
    write_atomically(record.path / TABLE, table.to_csv(index=False))
    return table


def benchmark_table(record: Run) -> pd.DataFrame:
    """Return the table that the schema declares, each row with leakage, utility and ε of one round.

    Rows are grouped by attack label. An adaptive attack without a label of its own takes the label of its non-adaptive
    twin; `adaptive` tells them apart. Each seed counts once: its value is the mean over clients. Clients that a defense
    hides are left out, attacks that failed or ran out of time count as `failures` and have no value. A row's
    differences are to the same clients, seeds and round of the same attack on no defense, told nothing. ε and the bound
    are of the most exposed client so far.
    """
    leakage = attacked(record)
    order = {cell.scenario.defense: i for i, cell in enumerate(record.cells.values())}
    scenarios = {cell.scenario.defense: cell.scenario for cell in record.cells.values()}
    bounds, missing = ReconstructionBounds(record), not_attacked_by(record)
    groups, clients = dict(list(leakage.groupby(KEY, sort=False))), record.clients
    reported = clients[clients.steps.notna()]  # the server has the update of these
    by_defense = clients[clients.status == "ok"].groupby("defense")
    costs = by_defense.agg(bytes=("bytes", "mean"), client_seconds=("seconds", "mean"))
    costs = costs.assign(bytes=costs.bytes.round()).reindex(clients.defense.unique())  # NaN if all failed
    rows = []
    for key, group in groups.items():
        row = dict(zip(KEY, key, strict=True))
        plain = row | {"defense": NONE, "adaptive": False}
        row |= attack_columns(group, groups.get(tuple(plain[name] for name in KEY)))
        row |= utility_columns(record.utility, row["defense"], row["round"])
        against = adversary_of(scenarios[row["defense"]], row["threat_model"])
        replies = reported[(reported.defense == row["defense"]) & (reported["round"] <= row["round"])]
        row |= worst_columns(replies, against)
        row |= bounds.columns(row["defense"], against, replies)
        row["not_attacked_by"] = missing[row["defense"], row["threat_model"]] or None
        rows.append(row | costs.loc[row["defense"]].to_dict())
    table = benchmark().frame(rows)
    ranked = table.assign(defense=table.defense.map(order)).sort_values(KEY, ascending=ORDER)
    return table.loc[ranked.index].reset_index(drop=True)


def attacked(record: Run) -> pd.DataFrame:
    """Return the rows of the leakage table for the benchmark, under its names of attacks and threat models."""
    twin = {f"{config.name}-adaptive": config.name for config in record.scenario.adversary.attacks}
    leakage = by_view(record.leakage)
    return leakage[leakage.status != "skipped"].assign(attack=leakage.attack.map(lambda label: twin.get(label, label)))


def by_view(leakage: pd.DataFrame) -> pd.DataFrame:
    """Give the history of all clients together a threat model of its own in the leakage table."""
    union = (leakage.threat_model == "history") & (leakage.client == ALL)  # beside the history of single clients
    return leakage.assign(threat_model=leakage.threat_model.mask(union, "history_all"))


def not_attacked_by(record: Run) -> dict[tuple[str, str], str]:
    """Name for each defense and threat model the attacks that gave no result on any client or seed, with the reason,
    and those of `USUAL` that did not run; "" if none is missing.

    The refusal of an attack that vouches for its images, as `span`, is named only if another attack is missing too.
    """
    names = {config.label: config.name for config in record.scenario.adversary.attacks}
    found: dict[tuple[str, str], str] = {}
    for view, rows in by_view(record.leakage).groupby(["defense", "threat_model"], sort=False):
        missing: dict[str, str] = {}
        refused: dict[str, str] = {}
        for label, own in rows.groupby("attack", sort=False):
            vouches = label in names and ATTACKS.find(names[label]).vouches
            if reason := _without_result(own, vouches):
                (refused if vouches and "ok" in set(own.status) else missing)[label] = reason
        run = {names.get(label, label) for label in rows.attack}
        missing |= {name: "not run" for name in USUAL if name not in run}
        found[view] = "; ".join(
            f"{label} ({why})" for label, why in ({**refused, **missing} if missing else {}).items()
        )
    return found


def _without_result(rows: pd.DataFrame, vouches: bool) -> str:
    """Return why an attack gave no result on these rows; "" if it gave one. vouches: an empty result is a refusal."""
    ended = rows[rows.status == "ok"]
    empty = bool(vouches and "num_held" in ended and (ended.num_reconstructed + ended.num_held == 0).all())
    if len(ended) and not empty:
        return ""
    first = (ended if len(ended) else rows).iloc[0]
    detail = first["detail"] if isinstance(first.get("detail"), str) else ""
    said = detail.removeprefix("InputError: ").split("; ")[0] or "nothing found"
    short = said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]} …"
    return f"{'refused' if empty else first['status']}: {short}"


def adversary_of(scenario: Scenario, threat_model: str) -> Adversary:
    """Return the adversary of a threat model of the benchmark's table."""
    of_all, name = threat_model == "history_all", threat_model.removesuffix("_all")
    views = [view for view in scenario.views if view.threat_model == name]
    return next((view for view in views if view.source.of_all == of_all), views[0]).adversary


def attack_columns(group: pd.DataFrame, plain: pd.DataFrame | None) -> dict[str, Any]:
    """Return the columns of one attack on one defense: means over seeds, intervals, and the number of failures. plain:
    the rows of the same attack on no defense."""
    means = [name for name, column in LEAKAGE.columns.items() if column.averaged and name in group]
    scores = by_client(group, means)
    by_seed = scores.groupby(level="seed").mean()
    columns: dict[str, Any] = {"seeds": group.seed.nunique(), "failures": int((group.status != "ok").sum())}
    columns |= {name: by_seed[name].mean() for name in means}
    for name in ("leakage", "recovered_fraction"):
        columns[f"{name}_ci95"] = half_width(by_seed[name])
        columns[f"{name}_low"], columns[f"{name}_high"] = cluster_interval(scores[name])
    if plain is not None:
        found = paired_difference(scores.recovered_fraction, by_client(plain, means).recovered_fraction)
        low, high = cluster_interval(found, -1.0, 1.0)
        columns |= {"recovered_difference": found.groupby(level="seed").mean().mean() if len(found) else None}
        columns |= {"recovered_difference_low": low, "recovered_difference_high": high}
        columns |= {"recovered_pairs": len(found), "recovered_p": sign_test(found)}
    return columns


def by_client(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return the scores of attacks with a result, indexed by (seed, client)."""
    return rows[rows.status == "ok"].set_index(["seed", "client"])[names].astype(float)


def utility_columns(utility: pd.DataFrame, defense: str, round: int) -> dict[str, Any]:
    """Return the columns of one defense after one round, over seeds; differences are to no defense, by seed."""
    by_seed = utility[utility["round"] == round].set_index(["defense", "seed"])
    if defense not in by_seed.index.levels[0]:
        return {}
    own = by_seed.loc[defense]
    columns = {"test_accuracy": own.test_accuracy.mean(), "test_accuracy_ci95": half_width(own.test_accuracy)}
    columns |= dict(zip(("test_accuracy_low", "test_accuracy_high"), share_interval(own.test_accuracy), strict=True))
    if NONE in by_seed.index.levels[0]:
        gained = (own.test_accuracy - by_seed.loc[NONE].test_accuracy).dropna()
        columns |= {"accuracy_difference": gained.mean(), "accuracy_difference_ci95": half_width(gained)}
    return columns


def strongest(table: pd.DataFrame) -> pd.DataFrame:
    """Return for every defense and threat model the row of the attack that has most of the private images in the last
    attacked round, with that share as `leak`: by the count of a verdict that is largest."""
    own = table[(table.target == "private") & (table["round"] == table["round"].max())]
    order = ranked_means(own).rename(columns={"share": LEAK})
    return order.groupby(["defense", "threat_model"], sort=False).head(1).sort_index()


EQUAL = "equal_utility.csv"
LOSSES = (0.01, 0.03, 0.10)  # of test accuracy
ROUNDING = 1e-9


def write_equal_utility(record: Run, table: pd.DataFrame) -> pd.DataFrame:
    """Write equal_utility.csv and return it; without a sweep over strengths an empty table, and no file."""
    equal = equal_utility(table)
    if len(equal):
        write_atomically(record.path / EQUAL, equal.to_csv(index=False))
    return equal


def equal_utility(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for every family, threat model and accepted loss, of the strongest attack at the chosen setting;
    without a setting if all cost more than the loss. table: of the benchmark."""
    found = settings(table)
    rows = []
    for (family, view), own in found.groupby(["family", "threat_model"], sort=False):
        for loss in LOSSES:
            row: dict[str, Any] = {"family": family, "threat_model": view, "accepted_loss": loss}
            within = own[own.accuracy_difference >= -loss - ROUNDING]
            if len(within):
                chosen = within.iloc[-1]
                row |= {"setting": chosen["defense"], **{name: chosen[name] for name in AT_SETTING.split()}}
            rows.append(row)
    return EQUAL_UTILITY.frame(rows)


def settings(table: pd.DataFrame) -> pd.DataFrame:
    """Return the strongest attack on every setting of a family, from weak to strong, with the column family."""
    rows = strongest(table)
    rows = rows[rows.defense.str.contains("=", regex=False)]
    families = rows.defense.map(lambda name: name.partition("=")[0])
    return rows.assign(family=families).dropna(subset=["accuracy_difference"])
