"""Experiments that are one sweep: its score table is judged, and drawn as curves, points or lines."""

from collections.abc import Callable, Sequence
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd

from simulator.paper.claims import Statistics
from simulator.paper.experiment import ExperimentRun, Outcome, experiment
from simulator.paper.measures import curve_table, first_seed_strips, score_table
from simulator.paper.pictures import draw_curves
from simulator.results.record import Record

ScoreStatistics = Callable[[pd.DataFrame], Statistics]
"""Takes the score table, as of `score_table`."""


def score_experiment(
    name: str, title: str, table: Callable[[Record], pd.DataFrame], draw: Callable[[pd.DataFrame], plt.Figure]
) -> Callable[[ScoreStatistics], ScoreStatistics]:
    """Register the experiment whose statistics the decorated function reads off the score table.

    table: makes data.csv. draw: makes the figure of it. The decorated function stays a plain function of a table.
    """

    def register(statistics: ScoreStatistics) -> ScoreStatistics:
        @experiment(name, title)
        def measure(run: ExperimentRun) -> Outcome:
            record = run.sweep()
            scores, data = score_table(record), table(record)
            sheet = partial(first_seed_strips, record, scores)
            return Outcome(data, statistics(scores), partial(draw, data), sheet)

        return statistics

    return register


def curve_experiment(
    name: str, title: str, hue: str, rows: Sequence[str], extra: Sequence[str] = ()
) -> Callable[[ScoreStatistics], ScoreStatistics]:
    """The same with a panel of reconstruction curves for each number of images.

    hue: the setting that colours the curves. rows: every combination of these settings has a row of panels. extra:
    columns of the score table that data.csv needs besides images, width, dynamics and seed.
    """
    return score_experiment(name, title, partial(curve_table, extra=extra), partial(draw_curves, hue=hue, rows=rows))
