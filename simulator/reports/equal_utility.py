"""equal_utility.csv: what every defense lets through where all cost the same accuracy.

Each family of `benchmark.strengths` is a defense at several strengths, in the benchmark's table the rows FAMILY=VALUE.
For a loss of accuracy that one accepts, the strongest setting counts whose mean loss to the same seeds without a
defense is no larger: a setting that was run, in the order of the file and without a look at what it lets through;
nothing is interpolated.
"""

from typing import Any

import pandas as pd

from simulator.reports.benchmark_table import NONE, strongest
from simulator.results.benchmark_schema import AT_SETTING, EQUAL_UTILITY
from simulator.results.disk import write_atomically
from simulator.results.run import Run

EQUAL = "equal_utility.csv"
LOSSES = (0.01, 0.03, 0.10)  # of test accuracy
ROUNDING = 1e-9


def write_equal_utility(record: Run, table: pd.DataFrame) -> pd.DataFrame:
    """equal_utility.csv, where the benchmark sweeps over strengths; else an empty table and no file."""
    equal = equal_utility(table)
    if len(equal):
        write_atomically(record.path / EQUAL, equal.to_csv(index=False))
    return equal


def equal_utility(table: pd.DataFrame) -> pd.DataFrame:
    """A row for every family, threat model and accepted loss, of the attack that recovers most at the chosen setting.

    table: of the benchmark. Where every setting costs more than the loss, the row has no setting.
    """
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
    """The strongest attack on every setting of a family, from weak to strong, with the column family."""
    rows = strongest(table)
    rows = rows[rows.defense.str.contains("=", regex=False)]
    families = rows.defense.map(lambda name: name.partition("=")[0])
    return rows.assign(family=families).dropna(subset=["accuracy_difference"])


def undefended(table: pd.DataFrame) -> pd.DataFrame:
    """The strongest attacks where there is no defense, a row for each threat model."""
    rows = strongest(table)
    return rows[rows.defense == NONE]
