"""Appendix I: which tangent space the attack works in, that of the initial or the final network, or both."""

import pandas as pd

from simulator.paper.base import Claim
from simulator.paper.measures import listed, seeds
from simulator.paper.sweeps import curve_experiment


@curve_experiment(
    "appendix_i",
    "the choice of kernel: initial, final or hybrid",
    "appendix I",
    hue="attack",
    column="num_private",
    row=["width"],
    extra=["attack"],
)
def choice_claims(scores: pd.DataFrame, source: str) -> list[Claim]:
    table = scores.pivot_table("l2_mean", ["num_private", "width", "seed"], "attack")
    by_seed, cost = table.groupby("seed").mean(), scores.groupby("attack").seconds.mean()
    measured, ratio = f"mean L2: {listed(table.mean())}, {seeds(scores)}", cost["hybrid"] / cost["final"]
    return [
        Claim(
            "the final kernel is marginally better than the initial one",
            source,
            "marginally better performance, the difference is rather minor",
            f"{measured}; better in {(table.final < table.initial).mean():.0%} of {len(table)} networks; holds where "
            "the mean is lower in each seed",
            bool((by_seed.final < by_seed.initial).all()),
        ),
        Claim(
            "the hybrid loss is better still",
            source,
            "increases performance further",
            f"{measured}; better than the final kernel in {(table.hybrid < table.final).mean():.0%} of {len(table)} "
            "networks; holds where the mean is lower than both others' in each seed",
            bool((by_seed.hybrid < by_seed[["initial", "final"]].min(axis=1)).all()),
        ),
        Claim(
            "the hybrid loss is twice as slow",
            source,
            "in general twice as slow",
            f"{ratio:.2f} times the time of the final kernel; holds between 1.5 and 2.5",
            1.5 <= ratio <= 2.5,
        ),
    ]
