"""Claims are data: an experiment's file says what the paper claims and which statistic decides; here it is judged.

A seed draws images, networks and attacks anew. Pairs within a seed share them, so a claim is a sample of as many as
there are seeds: its rule is asked of each seed's data alone, and a sign test over the seeds decides.
"""

import math
import operator
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BeforeValidator
from scipy.stats import binomtest

from clients.config import Section

Statistics = Mapping[str, Any]
"""What an experiment measured, by name: numbers, texts, series (by label), lists, Signs, or None for what was not
measured. A mapping under the key of a claim holds statistics of that claim alone."""

LEVEL = 0.05  # of the sign test, below which a claim is decided, one way or the other: five of five seeds, not four
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class ClaimRule(Section):
    """One claim of an experiment's file.

    claim: in short. source: section and figure of the paper. paper: what the paper says, in its own figures. measured:
    what was measured here, a template with names of statistics ("{rank:.2f}"). holds: comparisons "STATISTIC < VALUE"
    (also <=, >, >=; the value is a number or another statistic), all of which have to be true. identity: what is
    claimed is arithmetic, which no other draw could change, and needs no sample. chosen_after: what had been seen
    before the rule, the sizes or the attack were chosen; such a claim is never said to hold.
    """

    claim: str
    source: str = "{source}"
    paper: str
    measured: str
    holds: Annotated[list[str], BeforeValidator(lambda said: [said] if isinstance(said, str) else said)]
    identity: bool = False
    chosen_after: str = ""


@dataclass(frozen=True)
class Claim:
    """A claim that was judged.

    measured: the template filled in, and the rule. met: whether the rule is true of all that was measured together;
    None where nothing was left to judge, because --set took it out. n, agree: seeds that it was asked of alone, and in
    how many of them it is true; None for an identity. p: of the sign test, one-sided, for the more frequent outcome.
    holds: the verdict; None where it is open. verdict: the same in words.
    """

    claim: str
    source: str
    paper: str
    measured: str
    met: bool | None
    n: int | None
    agree: int | None
    p: float | None
    holds: bool | None
    verdict: str


@dataclass(frozen=True)
class Signs:
    """In how many of `total` comparisons something was found."""

    count: int
    total: int

    @classmethod
    def of(cls, found: pd.Series) -> "Signs":
        """found: a boolean for each comparison."""
        return cls(int(found.sum()), len(found))

    @property
    def share(self) -> float:
        """NaN where nothing was compared."""
        return self.count / self.total if self.total else math.nan

    @property
    def p_value(self) -> float:
        """Of the one-sided sign test: how probable as many would be if each were a toss of a coin, independently."""
        return float(binomtest(self.count, self.total, alternative="greater").pvalue) if self.total else math.nan

    def __str__(self) -> str:
        return f"{self.count} of {self.total}"


class Templates(string.Formatter):
    """str.format for statistics: a series reads "20: 1.41, 40: 2.34", a list "1.41, 2.34", each by the given format."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, pd.Series):
            return ", ".join(f"{key}: {each:{format_spec}}" for key, each in value.items())
        if isinstance(value, list):
            return ", ".join(f"{each:{format_spec}}" for each in value)
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        return "not measured" if missing else super().format_field(value, format_spec)


def judge(
    rules: Mapping[str, ClaimRule], statistics: Statistics, by_seed: Mapping[int, Statistics] | None = None
) -> list[Claim]:
    """Every rule, by its key, against what was measured, together and in each seed alone.

    Raises KeyError where a statistic is not even named.
    """
    claims = []
    for key, rule in rules.items():
        known = known_to(key, statistics)
        met = is_met(rule, known)
        measured = f"{Templates().vformat(rule.measured, (), known)}; holds where {' and '.join(rule.holds)}"
        said = rule.claim, rule.source, rule.paper
        if rule.identity:
            claims.append(Claim(*said, measured, met, None, None, None, met, IN_WORDS[met]))
            continue
        alone = [is_met(rule, known_to(key, found)) for found in (by_seed or {}).values()]
        seeds = Signs(alone.count(True), len(alone) - alone.count(None))
        claims.append(Claim(*said, measured, met, seeds.total, seeds.count, *sign_test(rule, seeds)))
    return claims


IN_WORDS = {True: "yes", False: "no", None: "not measured"}


def sign_test(rule: ClaimRule, seeds: Signs) -> tuple[float | None, bool | None, str]:
    """(p, whether the claim holds, the same in words) where its rule is true in so many seeds."""
    if not seeds.total:
        return None, None, IN_WORDS[None]
    against = Signs(seeds.total - seeds.count, seeds.total)
    more = seeds if seeds.count >= against.count else against
    p = more.p_value
    holds = more is seeds if p < LEVEL else None
    tested = f"{seeds} seed{'s' * (seeds.total > 1)}, p = {p:.2g}"
    if rule.chosen_after and holds is not False:
        return p, None, f"open: chosen after {rule.chosen_after} ({tested})"
    return p, holds, f"{'open' if holds is None else IN_WORDS[holds]} ({tested})"


def known_to(key: str, statistics: Statistics) -> Statistics:
    """All statistics, with those of one claim alone, under its key, in front."""
    own = statistics.get(key)
    return {**statistics, **own} if isinstance(own, Mapping) else statistics


def is_met(rule: ClaimRule, statistics: Statistics) -> bool | None:
    """Whether all comparisons are true; None where none is false and one could not be made."""
    verdicts = {compare(comparison, statistics) for comparison in rule.holds}
    return False if False in verdicts else None if None in verdicts else True


def compare(comparison: str, statistics: Statistics) -> bool | None:
    """Whether it is true of every entry of the statistics; None where an entry is NaN or there is no entry at all."""
    left, sign, right = comparison.split()
    first, second = np.broadcast_arrays(*(values_of(term, statistics) for term in (left, right)))
    measured = ~(np.isnan(first) | np.isnan(second))
    if not COMPARISONS[sign](first[measured], second[measured]).all():
        return False
    return True if measured.size and measured.all() else None


def values_of(term: str, statistics: Statistics) -> np.ndarray:
    """A number, or a statistic's value or values in float64: "0.5", "rank", "better.share", "gap[kip]".

    NaN for a statistic that is None.
    """
    try:
        return np.asarray(float(term))
    except ValueError:
        name = re.split(r"[.\[]", term)[0]
        found = None if statistics[name] is None else Templates().get_field(term, (), statistics)[0]
        return np.asarray(found, dtype=np.float64)
