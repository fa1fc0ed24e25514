"""Claims are data: an experiment's file says what the paper claims and which statistic decides; here it is judged."""

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

COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class ClaimRule(Section):
    """One claim of an experiment's file.

    claim: in short. source: section and figure of the paper. paper: what the paper says, in its own figures. measured:
    what was measured here, a template with names of statistics ("{rank:.2f}"). holds: comparisons "STATISTIC < VALUE"
    (also <=, >, >=; the value is a number or another statistic), all of which have to be true.
    """

    claim: str
    source: str = "{source}"
    paper: str
    measured: str
    holds: Annotated[list[str], BeforeValidator(lambda said: [said] if isinstance(said, str) else said)]


@dataclass(frozen=True)
class Claim:
    """A claim that was judged. measured: the template filled in, and the rule. holds: None where nothing was left to
    judge, because --set took it out."""

    claim: str
    source: str
    paper: str
    measured: str
    holds: bool | None


@dataclass(frozen=True)
class Signs:
    """In how many of `total` comparisons something was found, with the sign test: how probable as many would be if
    each were a coin toss."""

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
        """One-sided, of the hypothesis that either outcome is as likely; comparisons are taken to be independent."""
        return float(binomtest(self.count, self.total, alternative="greater").pvalue) if self.total else math.nan

    def __str__(self) -> str:
        return f"{self.count} of {self.total} (sign test p = {self.p_value:.2g})"


class Templates(string.Formatter):
    """str.format for statistics: a series reads "20: 1.41, 40: 2.34", a list "1.41, 2.34", each by the given format."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, pd.Series):
            return ", ".join(f"{key}: {each:{format_spec}}" for key, each in value.items())
        if isinstance(value, list):
            return ", ".join(f"{each:{format_spec}}" for each in value)
        return "not measured" if value is None else super().format_field(value, format_spec)


def judge(rules: Mapping[str, ClaimRule], statistics: Statistics) -> list[Claim]:
    """Every rule, by its key, against what was measured. Raises KeyError where a statistic is not even named."""
    claims = []
    for key, rule in rules.items():
        own = statistics.get(key)
        known = {**statistics, **own} if isinstance(own, Mapping) else statistics
        verdicts = {compare(comparison, known) for comparison in rule.holds}
        holds = False if False in verdicts else None if None in verdicts else True
        measured = f"{Templates().vformat(rule.measured, (), known)}; holds where {' and '.join(rule.holds)}"
        claims.append(Claim(rule.claim, rule.source, rule.paper, measured, holds))
    return claims


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
