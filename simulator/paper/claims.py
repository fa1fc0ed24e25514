"""Judge the claims of an experiment: its file says what the paper claims and which statistic decides.

A seed draws images, networks and attacks anew, and all data of a seed share them. So the sample is the seeds: a claim's
rule is asked of each seed's data alone, and a sign test over the seeds decides.
"""

import math
import operator
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BeforeValidator
from scipy.stats import binomtest
from scipy.stats import t as student_t

from attacks.interface.errors import counted
from clients.config import Section
from simulator.scenario.yaml_source import read_yaml

Statistics = Mapping[str, Any]
"""What an experiment measured, by name: numbers, texts, series (by label), lists, Signs, or None for what was not
measured. A mapping under the key of a claim holds statistics of that claim alone."""

CONFIDENCE = 0.95
LEVEL = 0.05  # a claim is decided, one way or the other, if p is less: by five of five seeds, not by four of four
FOLDER = Path(__file__).parents[2] / "scenarios" / "paper"
THEORY = FOLDER.parent / "theory"  # of the experiments on the constancy of the kernel
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class ClaimRule(Section):
    """One claim of an experiment's file.

    claim: in short.
    source: section and figure of the paper.
    paper: what the paper says, in its own figures.
    measured: what was measured here, a template with names of statistics ("{rank:.2f}").
    holds: comparisons "STATISTIC < VALUE" (also <=, >, >=; the value is a number or another statistic), all of which
        have to be true.
    identity: whether the claim is arithmetic, which every draw confirms, so that it needs no sample.
    """

    claim: str
    source: str = "{source}"
    paper: str
    measured: str
    holds: Annotated[list[str], BeforeValidator(lambda said: [said] if isinstance(said, str) else said)]
    identity: bool = False


@dataclass(frozen=True)
class Interval:
    """What the data say of a claim's size, and how sure that is, with a confidence of 95 %.

    of: the statistic that the rule compares first, or its difference from the one that it is compared with; of several
        entries the one that is nearest to refuting the rule.
    value: its mean over seeds.
    low, high: by Student's t.

    If a seed gives a count, or all give the same number, `value` is instead the share of the seeds in which the rule is
    true, with the exact interval of Clopper and Pearson.
    """

    of: str
    value: float
    low: float
    high: float
    method: Literal["t", "exact"]

    def __str__(self) -> str:
        return f"{self.of} {self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Claim:
    """A claim that was judged.

    measured: the template filled in, and the rule.
    met: whether the rule is true of all that was measured together; None where nothing was left to judge, because --set
        took it out.
    n, agree: seeds that it was asked of alone, and in how many of them it is true; None for an identity.
    p: of the sign test, one-sided, for the more frequent outcome.
    holds: the verdict; None where it is undecided.
    verdict: the same in words.
    profile: the size.
    interval: None for an identity and where no seed could be judged.
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
    identity: bool
    profile: str
    interval: Interval | None


@dataclass(frozen=True)
class Signs:
    """In how many of `total` comparisons something was found."""

    count: int
    total: int

    @classmethod
    def of(cls, found: pd.Series) -> "Signs":
        """Count what was found. found: a boolean for each comparison."""
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
    rules: Mapping[str, ClaimRule],
    statistics: Statistics,
    by_seed: Mapping[int, Statistics] | None = None,
    profile: str = "quick",
) -> list[Claim]:
    """Judge every rule, by its key, by all that was measured together and by each seed alone.

    Raises KeyError for a rule with a statistic that the experiment does not name.
    """
    claims = []
    for key, rule in rules.items():
        known = known_to(key, statistics)
        met = is_met(rule, known)
        measured = f"{Templates().vformat(rule.measured, (), known)}; holds where {' and '.join(rule.holds)}"
        said = rule.claim, rule.source, rule.paper, measured, met
        if rule.identity:
            claims.append(Claim(*said, None, None, None, met, IN_WORDS[met], True, profile, None))
            continue
        asked = [known_to(key, found) for found in (by_seed or {}).values()]
        asked = [found for found in asked if is_met(rule, found) is not None]
        seeds = Signs(sum(is_met(rule, found) is True for found in asked), len(asked))
        interval = effect(rule, asked, seeds)
        claims.append(Claim(*said, seeds.total, seeds.count, *sign_test(seeds), False, profile, interval))
    return claims


IN_WORDS = {True: "holds", False: "does not hold", None: "not measured"}


def sign_test(seeds: Signs) -> tuple[float | None, bool | None, str]:
    """Return (p, whether the claim holds, the same in words) for a rule that is true in so many seeds."""
    if not seeds.total:
        return None, None, IN_WORDS[None]
    against = Signs(seeds.total - seeds.count, seeds.total)
    more = seeds if seeds.count >= against.count else against
    p = more.p_value
    number = counted(seeds.total, "seed")
    if p >= LEVEL:
        return p, None, f"undecided after {number} ({seeds}, p = {p:.2g})"
    return p, more is seeds, f"{IN_WORDS[more is seeds]} ({seeds.count} of {number}, p = {p:.2g})"


def effect(rule: ClaimRule, asked: Sequence[Statistics], seeds: Signs) -> Interval | None:
    """Return the interval of a claim. asked: the statistics of each seed. seeds: in how many the rule is true."""
    if not asked:
        return None
    left, sign, right = rule.holds[0].split()
    bound = None if is_number(right) else right
    nearest = np.nanmin if sign.startswith(">") else np.nanmax
    each = [values_of(left, found) - (values_of(bound, found) if bound else 0.0) for found in asked]
    values = np.array([nearest(value) if np.isfinite(value).any() else math.nan for value in each])
    if ".share" in left or len(values) < 2 or not np.ptp(values) > 0:
        exact = binomtest(seeds.count, seeds.total).proportion_ci(CONFIDENCE)
        return Interval("share of seeds", rounded(seeds.share), rounded(exact.low), rounded(exact.high), "exact")
    several = ("least " if sign.startswith(">") else "largest ") if each[0].size > 1 else ""
    half = float(student_t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)
    mean = float(values.mean())
    of = several + left + (f" − {bound}" if bound else "")
    return Interval(of, rounded(mean), rounded(mean - half), rounded(mean + half), "t")


def rounded(value: float) -> float:
    """Round to six digits, which are the same on every machine."""
    return float(f"{value:.6g}")


def known_to(key: str, statistics: Statistics) -> Statistics:
    """Return all statistics; those of one claim alone, under its key, replace others of their names."""
    own = statistics.get(key)
    return {**statistics, **own} if isinstance(own, Mapping) else statistics


def is_met(rule: ClaimRule, statistics: Statistics) -> bool | None:
    """Whether all comparisons are true; None where none is false and one could not be made."""
    verdicts = {compare(comparison, statistics) for comparison in rule.holds}
    return False if False in verdicts else None if None in verdicts else True


def compare(comparison: str, statistics: Statistics) -> bool | None:
    """Whether a comparison is true of every entry; None if an entry is NaN, or if there is no entry at all."""
    left, sign, right = comparison.split()
    first, second = np.broadcast_arrays(*(values_of(term, statistics) for term in (left, right)))
    measured = ~(np.isnan(first) | np.isnan(second))
    if not COMPARISONS[sign](first[measured], second[measured]).all():
        return False
    return True if measured.size and measured.all() else None


def values_of(term: str, statistics: Statistics) -> np.ndarray:
    """Evaluate a number, or a statistic, as an array of float64: "0.5", "rank", "better.share", "gap[kip]".

    NaN for a statistic that is None.
    """
    if is_number(term):
        return np.asarray(float(term))
    name = re.split(r"[.\[]", term)[0]
    found = None if statistics[name] is None else Templates().get_field(term, (), statistics)[0]
    return np.asarray(found, dtype=np.float64)


def is_number(term: str) -> bool:
    try:
        float(term)
    except ValueError:
        return False
    return True


def file_of(name: str) -> Path:
    """Return the file of an experiment, by its name: in scenarios/paper, or else in scenarios/theory."""
    path = FOLDER / f"{name}.yaml"
    return path if path.exists() else THEORY / path.name


def load_claims(name: str) -> dict[str, ClaimRule]:
    """Read the claims of an experiment's file by key, in the order in which they are printed.

    A file that extends another adds its claims to that one's, replaces those of the same key, and leaves out those that
    it sets to null. In place of a claim, the name of an experiment stands for its claim of the same key. `source`, a
    key of the file, says where in the paper the claims stand; a claim's own source may add to it.
    """
    data = read_yaml(file_of(name)).data
    rules = {}
    for key, said in data["claims"].items():
        if said is not None:
            said = read_yaml(file_of(said)).data["claims"][key] if isinstance(said, str) else said
            rule = ClaimRule.model_validate(said)
            rules[key] = rule.model_copy(update={"source": rule.source.format(source=data["source"])})
    return rules
