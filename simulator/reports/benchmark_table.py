"""benchmark.csv of a finished run: what each defense lets through, what it costs, and how far both can be trusted."""

from typing import Any

import pandas as pd

from attacks import ATTACKS
from clients.defenses.differential_privacy.guarantee import Adversary
from simulator.reports.intervals import cluster_interval, half_width, paired_difference, share_interval, sign_test
from simulator.reports.reconstruction_bound import ReconstructionBounds
from simulator.results.benchmark_schema import benchmark
from simulator.results.disk import write_atomically
from simulator.results.keys import ALL
from simulator.results.privacy import worst_columns
from simulator.results.run import Run
from simulator.results.schema import LEAKAGE
from simulator.scenario.scenario import Scenario

TABLE = "benchmark.csv"
KEY = ["defense", "attack", "threat_model", "adaptive", "target", "round"]
ORDER = [True, True, True, True, False, True]  # which of them ascend
NONE = "none"
USUAL = ("span", "ntk", "gradient_matching")  # wherever anything is known to recover images, one of them is strongest
LONGEST_REASON = 100  # letters


def write_benchmark(record: Run) -> pd.DataFrame:
    """benchmark.csv of a finished run: a row per defense × attack × threat model × target × attacked round."""
    table = benchmark_table(record)
    write_atomically(record.path / TABLE, table.to_csv(index=False))
    return table


def benchmark_table(record: Run) -> pd.DataFrame:
    """The table that the schema declares: leakage, utility and ε of one and the same round in every row.

    Rows are grouped by attack label. An adaptive attack without a label of its own takes the label of its non-adaptive
    twin; `adaptive` tells them apart. Each seed counts once: its value is the mean over clients. Clients that a defense
    hides are left out, attacks that failed or ran out of time count as `failures` and have no value. The pairs of a
    row's differences are the clients, seeds and round of the same attack on no defense, told nothing. Accuracy is of
    what all clients so far have trained, and ε and the bound are of the most exposed of these.
    """
    leakage = attacked(record)
    order = {cell.scenario.defense: i for i, cell in enumerate(record.cells.values())}
    scenarios = {cell.scenario.defense: cell.scenario for cell in record.cells.values()}
    bounds, missing = ReconstructionBounds(record), not_attacked_by(record)
    costs, groups = client_costs(record), dict(list(leakage.groupby(KEY, sort=False)))
    rows = []
    for key, group in groups.items():
        row = dict(zip(KEY, key, strict=True))
        plain = row | {"defense": NONE, "adaptive": False}
        row |= attack_columns(group, groups.get(tuple(plain[name] for name in KEY)))
        row |= utility_columns(record.utility, row["defense"], row["round"])
        against = adversary_of(scenarios[row["defense"]], row["threat_model"])
        replies = replies_until(record.clients, row["defense"], row["round"])
        row |= worst_columns(replies, against)
        row |= bounds.columns(row["defense"], against, replies)
        row["not_attacked_by"] = missing[row["defense"], row["threat_model"]] or None
        rows.append(row | costs.loc[row["defense"]].to_dict())
    table = benchmark().frame(rows)
    ranked = table.assign(defense=table.defense.map(order)).sort_values(KEY, ascending=ORDER)
    return table.loc[ranked.index].reset_index(drop=True)


def attacked(record: Run) -> pd.DataFrame:
    """The rows of the leakage table that the benchmark is about, called as it calls them."""
    twin = {f"{config.name}-adaptive": config.name for config in record.scenario.adversary.attacks}
    leakage = by_view(record.leakage)
    return leakage[leakage.status != "skipped"].assign(attack=leakage.attack.map(lambda label: twin.get(label, label)))


def by_view(leakage: pd.DataFrame) -> pd.DataFrame:
    """The leakage table with a threat model of its own for the history of all clients together."""
    union = (leakage.threat_model == "history") & (leakage.client == ALL)  # beside the history of single clients
    return leakage.assign(threat_model=leakage.threat_model.mask(union, "history_all"))


def not_attacked_by(record: Run) -> dict[tuple[str, str], str]:
    """For each defense and threat model the attacks that gave no result on any client or seed, each with its reason,
    and those of `USUAL` that did not run; "" where none is missing.

    An attack that vouches for what it returns, as `span`, refuses what shows it nothing. That is named only where
    another attack is missing too: all others have then looked where it did not.
    """
    names = {config.label: config.name for config in record.scenario.adversary.attacks}
    found: dict[tuple[str, str], str] = {}
    for view, rows in by_view(record.leakage).groupby(["defense", "threat_model"], sort=False):
        missing: dict[str, str] = {}
        refused: dict[str, str] = {}
        for label, own in rows.groupby("attack", sort=False):
            vouches = label in names and ATTACKS.find(names[label]).vouches
            if reason := _without_result(own, vouches):
                (refused if vouches and "timeout" not in set(own.status) else missing)[label] = reason
        run = {names.get(label, label) for label in rows.attack}
        missing |= {name: "not run" for name in USUAL if name not in run}
        found[view] = "; ".join(
            f"{label} ({why})" for label, why in ({**refused, **missing} if missing else {}).items()
        )
    return found


def _without_result(rows: pd.DataFrame, vouches: bool) -> str:
    """Why an attack gave no result on any of these; "" where it gave one. vouches: to have nothing is to refuse."""
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
    """Whose eyes a threat model of the benchmark's table is."""
    of_all, name = threat_model == "history_all", threat_model.removesuffix("_all")
    views = [view for view in scenario.views if view.threat_model == name]
    return next((view for view in views if view.source.of_all == of_all), views[0]).adversary


def replies_until(clients: pd.DataFrame, defense: str, round: int) -> pd.DataFrame:
    """The rows of the clients table in which a client says what it did, up to a round: of those the server has seen an
    update, whatever became of it."""
    own = clients[(clients.defense == defense) & clients.steps.notna()]
    return own[own["round"] <= round]


def attack_columns(group: pd.DataFrame, plain: pd.DataFrame | None) -> dict[str, Any]:
    """Of the rows of one attack on one defense: means over seeds, intervals, and how many rows have no score.

    plain: those of the same attack on no defense.
    """
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
    """Scores of the attacks that ended well, indexed by (seed, client)."""
    return rows[rows.status == "ok"].set_index(["seed", "client"])[names].astype(float)


def utility_columns(utility: pd.DataFrame, defense: str, round: int) -> dict[str, Any]:
    """Of one defense after one round, over seeds; differences are to the same seeds without a defense."""
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


def client_costs(record: Run) -> pd.DataFrame:
    """By defense: bytes that a client sends in a round, and seconds that it trains; NaN where every client failed."""
    clients = record.clients[record.clients.status == "ok"]
    costs = clients.groupby("defense").agg(bytes=("bytes", "mean"), client_seconds=("seconds", "mean"))
    return costs.assign(bytes=costs.bytes.round()).reindex(record.clients.defense.unique())


def tried_by_all(rows: pd.DataFrame) -> pd.DataFrame:
    """Those rows of the benchmark of which no attack is missing that could be the strongest."""
    return rows[rows.not_attacked_by.isna()] if "not_attacked_by" in rows else rows


def strongest(table: pd.DataFrame) -> pd.DataFrame:
    """For every defense and threat model the row of the attack that recovers most of the private images in the last
    attacked round; the earlier rounds are in the table. held_fraction is that of the attack that holds most: what one
    returns takes nothing from what another holds."""
    own = table[(table.target == "private") & (table["round"] == table["round"].max())]
    if "held_fraction" in own:
        own = own.assign(held_fraction=own.groupby(["defense", "threat_model"]).held_fraction.transform("max"))
    ranked = own.sort_values(["recovered_fraction", "leakage"], na_position="first", kind="stable")
    return ranked.groupby(["defense", "threat_model"], sort=False).tail(1).sort_index()
