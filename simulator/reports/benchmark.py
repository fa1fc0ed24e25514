"""`fedspill benchmark`: defenses × attacks × threat models × seeds as one run, and the table that compares them.

A benchmark file is a scenario with a section `benchmark`: a list of defense chains, the number of seeds, overrides for
data of one's own (`with_root`), and named profiles that override the rest. Every chain and seed is a cell of one sweep,
so cells with the same seed share data, initial weights and client schedule, and a benchmark resumes like any run.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field
from scipy import stats

from attacks.interface.errors import InputError, nearest
from clients.config import Count, Section
from simulator.results.privacy import worst_columns
from simulator.results.record import Record
from simulator.results.schema import LEAKAGE, benchmark
from simulator.results.storage import write_atomically
from simulator.scenario.error_message import read_section
from simulator.scenario.scenario import Scenario, load_source, prepare, validate
from simulator.scenario.yaml_source import Source, merge, read_yaml

TABLE = "benchmark.csv"
KEY = ["defense", "attack", "threat_model", "adaptive", "target"]


class BenchmarkConfig(Section):
    """Of a benchmark file only (`fedspill benchmark`): it compares chains of defenses."""

    defenses: list[list[Any] | str] = Field(min_length=1, description="chains: none, a name, or a list of defenses")
    seeds: Count = Field(3, description="that every chain is run with, from the scenario's `seed` on")
    with_root: dict[str, Any] = Field(default_factory=dict, description="overrides where data.root is given")
    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict, description="name: overrides, benchmark too")

    def chains(self) -> list[list[Any]]:
        return [([] if chain == "none" else [chain]) if isinstance(chain, str) else chain for chain in self.defenses]


def load_benchmark(path: Path, profile: str | None = None, overrides: list[str] | None = None) -> Scenario:
    """The benchmark as a scenario with a sweep over defenses and seeds; InputError says what is wrong with the file."""
    source = read_yaml(path)
    if "benchmark" not in source.data:
        raise InputError(f"{path}: a benchmark has a section `benchmark` with its `defenses`")
    config = read_section(source, "benchmark", BenchmarkConfig)
    if profile is not None:
        if profile not in config.profiles:
            known = list(config.profiles)
            raise InputError(f"{path}: no profile {profile!r}{nearest(profile, known)}; there are {', '.join(known)}")
        source.data = merge(source.data, config.profiles[profile])
        config = read_section(source, "benchmark", BenchmarkConfig)
    del source.data["benchmark"]
    given = prepare(Source(source.data, source.lines), overrides)
    data = given.data.get("data")
    if isinstance(data, dict) and data.get("root") and config.with_root:
        given = prepare(Source(merge(source.data, config.with_root), source.lines), overrides)
    if given.data.get("sweep"):
        where = given.where(("sweep",))
        prefix = f"{where}: " if where else ""
        raise InputError(f"{prefix}a benchmark sweeps over its defenses and seeds alone: remove `sweep`")
    first = validate(given).seed
    given.data["sweep"] = {"defenses": config.chains(), "seed": [first + i for i in range(config.seeds)]}
    return load_source(given)


def write_benchmark(record: Record) -> pd.DataFrame:
    """benchmark.csv of a finished run: one row per defense × attack × threat model × target, means over seeds."""
    table = benchmark_table(record)
    write_atomically(record.path / TABLE, table.to_csv(index=False))
    return table


def benchmark_table(record: Record) -> pd.DataFrame:
    """The table that the schema declares; *_ci95 is the half-width of the 95 % confidence interval over seeds.

    Rows are grouped by attack label. An adaptive attack without a label of its own takes the label of its non-adaptive
    twin; `adaptive` tells them apart. Each seed counts once: its value is the mean over rounds and clients. Clients
    that a defense hides are left out, attacks that failed or ran out of time count as `failures` and have no value.
    """
    given = {f"{config.name}-adaptive": config.name for config in record.scenario.adversary.attacks}
    leakage = record.leakage[record.leakage.status != "skipped"]
    leakage = leakage.assign(attack=leakage.attack.map(lambda label: given.get(label, label)))
    order = {cell.scenario.defense: i for i, cell in enumerate(record.cells.values())}
    costs, utility = client_costs(record), record.utility[record.utility["round"] == record.utility["round"].max()]
    rows = []
    for key, group in leakage.groupby(KEY, sort=False):
        row = dict(zip(KEY, key, strict=True)) | attack_columns(group)
        row |= utility_columns(utility[utility.defense == row["defense"]])
        row |= worst_columns(group[group["round"] == group["round"].max()])
        rows.append(row | costs.loc[row["defense"]].to_dict())
    table = benchmark().frame(rows)
    ranked = table.assign(defense=table.defense.map(order)).sort_values(KEY, ascending=[True, True, True, True, False])
    return table.loc[ranked.index].reset_index(drop=True)


def attack_columns(group: pd.DataFrame) -> dict[str, float]:
    """Of the rows of one attack on one defense: means over seeds, and how many rows have no score."""
    means = [name for name, column in LEAKAGE.columns.items() if column.averaged and name in group]
    by_seed = group[group.status == "ok"].groupby("seed")[means].mean()
    counts = {"seeds": group.seed.nunique(), "failures": int((group.status != "ok").sum())}
    widths = {f"{name}_ci95": half_width(by_seed[name]) for name in ("leakage", "recovered_fraction")}
    return counts | {name: by_seed[name].mean() for name in means} | widths


def utility_columns(rows: pd.DataFrame) -> dict[str, float]:
    """Of the last round of one defense, a row per seed."""
    accuracy, width = rows.test_accuracy.mean(), half_width(rows.test_accuracy)
    return {"test_accuracy": accuracy, "test_accuracy_ci95": width}


def client_costs(record: Record) -> pd.DataFrame:
    """By defense: bytes that a client sends in a round, and seconds that it trains; NaN where every client failed."""
    clients = record.clients[record.clients.status == "ok"]
    costs = clients.groupby("defense").agg(bytes=("bytes", "mean"), client_seconds=("seconds", "mean"))
    return costs.assign(bytes=costs.bytes.round()).reindex(record.clients.defense.unique())


def half_width(values: pd.Series) -> float:
    """Of the 95 % confidence interval of the mean; NaN for fewer than two values."""
    count = values.count()
    return float(stats.t.ppf(0.975, count - 1) * values.std() / np.sqrt(count))
