"""`--fail-above COLUMN=VALUE`: fail on rows that leak more than a pipeline accepts.

A limit is on a numeric column of the leakage table, for all rows about private images or for those of one threat model,
defense or attack: `leakage=0.2`, `server:leakage=0.2`, `noise/server:recovered=0`. A row without a value is named. A
limit is exceeded if no row has a value, and if its rows are about candidates, which have no scores.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from attacks.interface.errors import InputError, did_you_mean
from simulator.results.keys import owner
from simulator.results.schema import BEYOND, CLASSES, FLOOR, LEAKAGE, MEMBERSHIP, NULL, SCORES
from simulator.run_errors import RunError
from simulator.rundir.exposure_rows import about_private, are_candidates

PLACES = ("threat_model", "defense", "attack")  # columns that a limit can be narrowed by
NEED_TRUTH = (SCORES, FLOOR, CLASSES, BEYOND, NULL, MEMBERSHIP)  # but for `num_held`, which the attack knows
NAMED = 20  # rows in the message


class GateFailed(RunError):
    """The run is complete, and leaks more than --fail-above accepts."""

    exit_code = 4


@dataclass(frozen=True)
class Limit:
    """The most that a column may be, in rows that have all of `where` among their threat model, defense and attack."""

    column: str
    most: float
    where: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Limit":
        """Parse "leakage=0.2", or "server:leakage=0.2"; InputError names what is wrong."""
        name, equals, value = text.rpartition("=")
        where, _, column = name.rpartition(":")
        if not equals or not column:
            raise InputError(f"--fail-above {text!r}: write COLUMN=VALUE, as leakage=0.2 or server:leakage=0.2")
        if column not in LEAKAGE.numeric:
            hint = did_you_mean(column, LEAKAGE.numeric).partition(" (known")[0]
            raise InputError(f"--fail-above {text!r}: no numeric column {column!r} in docs/reference/tables.md{hint}")
        try:
            most = float(value)
        except ValueError:
            most = math.nan
        if not math.isfinite(most):
            raise InputError(f"--fail-above {text!r}: {value!r} is no finite number")
        return cls(column, most, tuple(where.split("/")) if where else ())

    def __str__(self) -> str:
        return f"{'/'.join(self.where)}{':' if self.where else ''}{self.column}={self.most:g}"


def parse_limits(texts: Sequence[str], known: Collection[str], scored: bool = True) -> tuple[Limit, ...]:
    """Parse the limits of a command line. known: the names that a limit may have. scored: whether there is a truth.
    Raise InputError for another name, and for a score where there is no truth."""
    limits = tuple(map(Limit.parse, texts))
    for limit in limits:
        if not scored and LEAKAGE.columns[limit.column].group in NEED_TRUTH and limit.column != "num_held":
            raise InputError(f"--fail-above {limit}: {limit.column!r} needs the private images: add --truth")
    for limit, word in [(one, word) for one in limits for word in one.where]:
        if word not in known:
            hint = did_you_mean(word, sorted(known))
            raise InputError(f"--fail-above {limit}: no threat model, defense or attack is called {word!r}{hint}")
    return limits


def judge(leakage: pd.DataFrame, limits: Sequence[Limit]) -> tuple[GateFailed | None, list[str]]:
    """Return (the error with every row above a limit, the worst first, or None; lines on rows without a value)."""
    exceeded: list[str] = []
    unknown: list[str] = []
    for limit in limits:
        rows = about_private(leakage)
        places = [name for name in PLACES if name in rows]
        for word in limit.where:
            rows = rows[(rows[places] == word).any(axis=1)]
        values = pd.to_numeric(rows[limit.column]) if limit.column in rows else pd.Series(math.nan, index=rows.index)
        above = values[values > limit.most].sort_values(ascending=False)
        exceeded += [f"{limit.column} {value:.4g} > {limit.most:g}: {_row(rows.loc[i])}" for i, value in above.items()]
        candidates = values.isna() & are_candidates(rows)
        if candidates.any():
            exceeded.append(
                f"{limit}: {candidates.sum()} of {len(rows)} rows have no such score, since --truth holds "
                "candidates: give a file per client, or set a limit on membership_told"
            )
        elif values.notna().sum() == 0:
            exceeded.append(f"{limit}: none of {len(rows)} rows has a value, so nothing shows that it holds")
        elif missing := int(values.isna().sum()):
            first = ", ".join(rows.status[values.isna()].unique())
            unknown.append(
                f"--fail-above {limit}: {missing} of {len(rows)} rows have no value ({first}): "
                "nothing is known of those, which does not make them safe"
            )
    if not exceeded:
        return None, unknown
    more = len(exceeded) - NAMED
    lines = [*exceeded[:NAMED], *([f"{more} more rows"] if more > 0 else [])]
    return GateFailed("\n  ".join(["more leaks than --fail-above accepts:", *lines])), unknown


def _row(row: pd.Series) -> str:
    """Identify a row in words."""
    defense = "" if row["defense"] == "none" or pd.isna(row["defense"]) else f", {row['defense']}"
    who = f"{owner(row['client'])}, {row['threat_model']}, {row['attack']}"
    return f"round {row['round']}, {who}{defense}, seed {row['seed']}"
