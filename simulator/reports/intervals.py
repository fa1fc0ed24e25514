"""Intervals of scores that come in clusters: clients within seeds. What a row of benchmark.csv can be trusted for."""

import numpy as np
import pandas as pd
import scipy  # its parts are imported where they are first used

from attacks.interface.seeding import numpy_generator

LEVEL = 0.95
DRAWS = 2000  # of the bootstrap


def half_width(values: pd.Series) -> float:
    """Of the 95 % confidence interval of the mean (Student's t); NaN for fewer than two values."""
    count = values.count()
    return float(scipy.stats.t.ppf((1 + LEVEL) / 2, count - 1) * values.std() / np.sqrt(count))


def share_interval(values: pd.Series) -> tuple[float, float]:
    """The 95 % confidence interval of the mean of shares (Student's t), cut at 0 and 1, which no mean share is beyond:
    what is cut off holds no share, so the interval covers as often. NaN for fewer than two values."""
    mean, half = float(values.mean()), half_width(values)
    return (np.nan, np.nan) if np.isnan(half) else (max(0.0, mean - half), min(1.0, mean + half))


def cluster_interval(scores: pd.Series, least: float = 0.0, most: float = 1.0) -> tuple[float, float]:
    """The 95 % interval of a mean over seeds of means over clients.

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
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(
        _resampled([group.to_numpy() for _, group in scores.groupby(level="seed")]), [tail, 100 - tail]
    )
    return float(low), float(high)


def _resampled(clusters: list[np.ndarray]) -> np.ndarray:
    """Means of DRAWS two-stage resamples of clusters of scores, from a generator of its own: always the same ones."""
    generator = numpy_generator(0, "bootstrap")
    chosen = generator.integers(0, len(clusters), (DRAWS, len(clusters)))
    means = np.empty(chosen.shape)
    for number, scores in enumerate(clusters):
        own = chosen == number
        means[own] = generator.choice(scores, (int(own.sum()), len(scores))).mean(1)
    return means.mean(1)


def paired_difference(scores: pd.Series, reference: pd.Series) -> pd.Series:
    """Scores minus those of the same seed and client in the reference, both indexed by (seed, client).

    Where no client is in both (a defense that hides clients is attacked as their union), the seeds' means are pairs.
    """
    scores, reference = scores.dropna(), reference.dropna()
    common = scores.index.intersection(reference.index)
    if not len(common) and len(scores) and len(reference):
        by_seed = (one.groupby(level="seed").mean() for one in (scores, reference))
        scores, reference = (pd.concat({-1: one}, names=["client"]).swaplevel() for one in by_seed)
        common = scores.index.intersection(reference.index)
    return scores[common] - reference[common]


def sign_test(differences: pd.Series) -> float:
    """p of as one-sided or more among the seeds' mean differences, were either sign as likely (exact, two-sided).

    Seeds without a difference are left out; NaN where none is left. With n seeds it is at least 2 / 2ⁿ.
    """
    means = differences.groupby(level="seed").mean() if len(differences) else differences
    positive, total = int((means > 0).sum()), int((means != 0).sum())
    return float(scipy.stats.binomtest(positive, total).pvalue) if total else np.nan
