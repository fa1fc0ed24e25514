"""Experiments whose figure is a panel of reconstruction curves: a sweep, and a function that judges its score table."""

from collections.abc import Callable, Sequence

import pandas as pd

from simulator.paper.base import Claim, Job, Result, experiment
from simulator.paper.measures import curve_table, score_table, strips
from simulator.paper.pictures import draw_curves

Judge = Callable[[pd.DataFrame, str], list[Claim]]
"""Takes the score table and the place in the paper that the claims come from."""


def curve_experiment(
    name: str, title: str, source: str, hue: str, column: str, row: Sequence[str], extra: Sequence[str] = ()
) -> Callable[[Judge], Judge]:
    """Register the experiment that `judge` decides; judge itself stays a plain function of a table.

    hue, column, row: settings by which the curves are coloured and laid out (several rows: every combination).
    extra: columns of the score table that data.csv needs besides images, width, dynamics and seed.
    """

    def register(judge: Judge) -> Judge:
        @experiment(name, title)
        def measure(job: Job) -> Result:
            record = job.sweep()
            scores, data = score_table(record), curve_table(record, extra)
            first = scores[scores.seed == scores.seed.min()]
            return Result(
                data,
                judge(scores, source),
                lambda path: draw_curves(data, path, hue, column, list(row)),
                lambda: strips(record, first),
            )

        return judge

    return register
