"""Appendix I: which tangent space the attack works in, that of the initial or the final network, or both."""

from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import curve_table, listed, score_table, seeds
from simulator.paper.pictures import curve_result

SETTING = ["num_private", "width", "seed"]


@experiment("appendix_i", "the choice of kernel: initial, final or hybrid")
def kernel_choice(job: Job) -> Result:
    record = job.sweep()
    scores = score_table(record)
    table = scores.pivot_table("l2_mean", SETTING, "attack")
    means, by_seed = table.mean(), table.groupby("seed").mean()
    cost = scores.groupby("attack").seconds.mean()
    measured = f"mean L2: {listed(means)}, {seeds(scores)}"
    ratio = cost["hybrid"] / cost["final"]
    claims = [
        Claim(
            "the final kernel is marginally better than the initial one",
            "appendix I",
            "marginally better performance, the difference is rather minor",
            f"{measured}; better in {(table.final < table.initial).mean():.0%} of {len(table)} networks; "
            "holds where the mean is lower in each seed",
            bool((by_seed.final < by_seed.initial).all()),
        ),
        Claim(
            "the hybrid loss is better still",
            "appendix I",
            "increases performance further",
            f"{measured}; better than the final kernel in {(table.hybrid < table.final).mean():.0%} of {len(table)} "
            "networks; holds where the mean is lower than both others' in each seed",
            bool((by_seed.hybrid < by_seed[["initial", "final"]].min(axis=1)).all()),
        ),
        Claim(
            "the hybrid loss is twice as slow",
            "appendix I",
            "in general twice as slow",
            f"{ratio:.2f} times the time of the final kernel; holds between 1.5 and 2.5",
            1.5 <= ratio <= 2.5,
        ),
    ]  # fmt: skip
    data = curve_table(record, ["attack"])
    return curve_result(record, scores, data, claims, "attack", "num_private", "width")
