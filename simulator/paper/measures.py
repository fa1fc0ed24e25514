"""The tables of a run as figures read them: scores beside the settings they belong to, and the statistics of claims."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.scoring.matching import distances, matched_l2
from clients.models import option_values
from simulator.paper.base import Strip
from simulator.reports.figures import best_pairs
from simulator.results.keys import ObservationKey
from simulator.results.record import Record
from simulator.results.storage import load_images
from simulator.scenario.scenario import Cell

SHEET_IMAGES = 20


def settings_of(cell: Cell) -> dict[str, object]:
    """What figures are drawn against, by the names of their columns; width and multiplier are 0
    where a network has none."""
    scenario = cell.scenario
    options = option_values(scenario.model)
    return {
        "cell": cell.name,
        "dataset": scenario.data.name,
        "width": options.get("width", 0),
        "multiplier": options.get("multiplier", 0),
        "dynamics": scenario.training.dynamics,
        "loss": scenario.training.loss,
        "stop_at_loss": scenario.training.stop_at_loss,
        "task": scenario.data.task if isinstance(scenario.data.task, str) else "classes",
    }


def score_table(record: Record) -> pd.DataFrame:
    """The leakage table with the settings of each cell, how its training ended (`steps`, `train_loss`), and
    `floor_l2_mean` as of `floors`."""
    settings = pd.DataFrame([settings_of(cell) for cell in record.cells.values()])
    trained = record.clients.assign(train_loss=record.clients.last_loss)[["cell", "steps", "train_loss"]]
    scores = record.leakage.merge(settings, on="cell", validate="m:1").merge(trained, on="cell", validate="m:1")
    return scores.merge(floors(record), on=["cell", "attack"], validate="1:1")


def floors(record: Record) -> pd.DataFrame:
    """cell, attack, floor_l2_mean: of the better of two attackers who know nothing, one with as many public images and
    one with their mean, which is the nearer where there are few images."""
    means = record.samples.groupby(["cell", "attack"])[["floor_l2", "mean_image_l2"]].mean()
    return means.min(axis=1).rename("floor_l2_mean").reset_index()


def floor_of(private: Tensor, public: Tensor, count: int) -> float:
    """The same outside a run: mean L2 to `count` of the public images or to their mean. (N, C, H, W) both."""
    drawn, _ = matched_l2(private, public[:count])
    return min(float(drawn.mean()), float(distances(private, public.mean(0, keepdim=True)).mean()))


def curve_table(record: Record, extra: Sequence[str] = ()) -> pd.DataFrame:
    """Reconstruction curves: for each cell and attack, images by `rank` from 1, closest first, with `l2`, and, each
    sorted by itself, those of attackers who know nothing: `floor_l2` of as many public images, `mean_image_l2` of their
    mean. extra: columns of the score table to add.
    """
    keys = ["cell", "attack"]
    samples = record.samples
    curves = samples[keys].copy()
    scales = ["l2", "floor_l2", "mean_image_l2"]
    for name in scales:
        by_rank = samples.sort_values(name).assign(rank=lambda frame: frame.groupby(keys).cumcount() + 1)
        by_rank = by_rank[[*keys, "rank", name]]
        curves = by_rank if "rank" not in curves else curves.merge(by_rank, on=[*keys, "rank"])
    columns = ["num_private", "width", "dynamics", "seed", *extra]
    settings = score_table(record)[list(dict.fromkeys([*keys, *columns]))]
    order = list(dict.fromkeys([*columns, "attack", "rank"]))
    frame = curves.merge(settings, on=keys, validate="m:1").sort_values(order)
    return frame[[*columns, "rank", *scales]].reset_index(drop=True)


def strips(record: Record, rows: pd.DataFrame) -> list[Strip]:
    """For each row of the score table its best reconstructions, as the paper's image sheets order them."""
    found = []
    for _, row in rows.iterrows():
        key = ObservationKey.of(row)
        images = load_images(record.store(row["cell"]).reconstruction_path(key, row["attack"]))
        private, guesses, l2 = best_pairs(record, row, row["cell"], images, SHEET_IMAGES)
        title = f"{row['cell']}, {row['attack']}: {row['recovered']} of {row['num_private']} recovered"
        found.append(Strip(title, private, guesses, l2))
    return found


def spearman(frame: pd.DataFrame, first: str, second: str) -> float:
    """Rank correlation of two columns; NaN where one of them does not vary."""
    return round(float(frame[first].corr(frame[second], method="spearman")), 9)  # a fraction, as bounds are


def spearman_within(frame: pd.DataFrame, first: str, second: str, groups: list[str]) -> float:
    """Mean over groups of the rank correlation within each: everything else stays the same."""
    each = [spearman(group, first, second) for _, group in frame.groupby(groups)]
    return round(float(pd.Series(each).mean()), 9)


@dataclass(frozen=True)
class Steps:
    """Of all steps from one value of a setting to the next, all others equal: how many there are, how many go down."""

    down: int
    count: int

    @classmethod
    def of(cls, frame: pd.DataFrame, setting: str, value: str, groups: list[str]) -> "Steps":
        ordered = frame.sort_values(setting).groupby(groups)[value]
        changes = ordered.diff().dropna()
        return cls(int((changes < 0).sum()), len(changes))

    @property
    def share(self) -> float:
        """That go down; NaN where there is no step."""
        return self.down / self.count if self.count else math.nan


def paired(frame: pd.DataFrame, key: str, better: object, worse: object, value: str, pair: list[str]) -> pd.DataFrame:
    """One row per pair of cells that differ in `key` alone: columns `better` and `worse` hold their `value`.

    Raises InputError where --set left one of the two out.
    """
    table = frame.pivot_table(value, pair, key)
    for missing in {better, worse} - set(table.columns):
        raise InputError(f"this experiment compares {key} {better} with {worse}: --set left {missing} out")
    return pd.DataFrame({"better": table[better], "worse": table[worse]}).dropna()


def listed(values: pd.Series, digits: int = 2) -> str:
    """ "20: 1.41, 40: 2.34"."""
    return ", ".join(f"{key}: {value:.{digits}f}" for key, value in values.items())


def at_least(value: float, bound: float) -> bool | None:
    """Whether a claim holds whose statistic has to reach `bound`; None where there is no statistic (NaN)."""
    return None if math.isnan(value) else value >= bound


def at_most(value: float, bound: float) -> bool | None:
    """The same for a statistic that has to stay at or below `bound`."""
    return at_least(-value, -bound)


def binary_task(scores: pd.DataFrame) -> str:
    """The task of two groups beside which all classes are measured."""
    found = [task for task in scores.task.unique() if task != "classes"]
    if not found:
        raise InputError("this experiment compares all classes with two groups: --set left data.task with one value")
    return str(found[0])


def seeds(frame: pd.DataFrame) -> str:
    """How many, in words."""
    count = frame.seed.nunique()
    return f"{count} seed{'s' * (count > 1)}"
