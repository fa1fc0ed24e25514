"""How experiments are drawn: in seaborn panels.

Tables of a run as experiments read them, scores beside the settings they belong to, and statistics of claims.
"""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

from attacks.interface.errors import InputError
from attacks.scoring.images import distances, matched_l2
from clients.models import option_values
from simulator.paper.claims import Signs
from simulator.paper.experiment import num_private
from simulator.reports.drawing import FLOOR_COLOUR, FLOORS, themed
from simulator.rundir.run import Run
from simulator.scenario.scenario import Cell


def readable_log(axis: plt.Axes) -> None:
    """Make the x axis logarithmic, with plain numbers at powers of ten and, over two decades or less, at 2 and 5."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high <= 100 * low else (1.0,)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def draw_curves(frame: pd.DataFrame, hue: str, rows: Sequence[str]) -> plt.Figure:
    """Draw reconstruction curves: a panel for each number of images, means over seeds, a colour for each value of
    `hue`. Those of the floors are grey, of public images dashed and of their mean dotted.

    rows: every combination of these settings has a row of panels.
    """
    themed()
    panels = {"row": frame[list(rows)].astype(str).agg(", ".join, axis=1), "column": frame.num_private.astype(str)}
    frame = frame.assign(**panels, colour=frame[hue].astype(str)).rename(columns={"colour": f"{hue} "})
    grid = sns.relplot(
        frame, x="rank", y="l2", hue=f"{hue} ", hue_order=list(dict.fromkeys(frame[f"{hue} "])), col="column",
        row="row", kind="line", errorbar=None, height=2.6, aspect=1.2, facet_kws={"sharex": "col"},
    )  # fmt: skip
    for (row, count), axis in grid.axes_dict.items():
        own = frame[(frame.row == row) & (frame.column == count)]
        for name, (style, _) in FLOORS.items():
            floor = own.groupby("rank")[name].mean()
            axis.plot(floor.index, floor, color=FLOOR_COLOUR, linestyle=style, linewidth=1)
        axis.set_title(f"{row}, {count} images")
    grid.set(ylim=(0, None)).set_axis_labels("private image, easiest first", "L2 distance")
    return grid.figure


def draw_scatter(
    frame: pd.DataFrame, x: str, y: str, *, style: str, size: str | None = "num_private", log_x: bool = True
) -> plt.Figure:
    """Draw a scatter plot of two columns, coloured by width. style, size: columns too."""
    themed()
    figure, axis = plt.subplots(figsize=(6, 4.2))
    sns.scatterplot(frame, x=x, y=y, hue="width", size=size, style=style, palette="viridis", sizes=(25, 120), ax=axis)
    if log_x:
        readable_log(axis)
    axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return figure


def draw_lines(
    frame: pd.DataFrame, x: str, y: str, hue: str, *, log_x: bool = False, log_y: bool = False, **options: Any
) -> plt.Figure:
    """Draw means over seeds, with their range, against a setting, a colour for each value of `hue`.

    options: more of seaborn.relplot, such as `col`, the setting that has a panel for each value.
    """
    themed()
    markers = {"marker": "o"} if "style" not in options else {"markers": True}
    options = {"height": 3, "aspect": 1.2, "errorbar": ("pi", 100), **markers, **options}
    grid = sns.relplot(frame.assign(**{hue: frame[hue].astype(str)}), x=x, y=y, hue=hue, kind="line", **options)
    for axis in grid.axes.flat if log_x else ():
        readable_log(axis)
    if log_y:
        grid.set(yscale="log")
    return grid.figure


def draw_columns(
    frame: pd.DataFrame, x: str, columns: list[str], hue: str, y: str = "value", **options: Any
) -> plt.Figure:
    """Draw several columns as `draw_lines` does one, a colour for each. hue, y: names of the columns, and of values."""
    others = [name for name in frame if name not in columns]
    return draw_lines(frame.melt(others, columns, hue, y), x, y, hue, **options)


SCORES = (
    "l2_mean floor_l2_mean recovered recovered_fraction kernel_distance seconds steps train_loss"
).split()  # of a network and an attack


def settings_of(cell: Cell) -> dict[str, object]:
    """Return what figures are drawn against, by column. width and multiplier are 0 for a network without them."""
    scenario = cell.scenario
    options = option_values(scenario.model)
    return {
        "cell": cell.name,
        "num_private": num_private(cell),
        "seed": scenario.seed,
        "width": options.get("width", 0),
        "multiplier": options.get("multiplier", 0),
        "dynamics": scenario.training.dynamics,
        "loss": scenario.training.loss,
        "stop_at_loss": scenario.training.stop_at_loss,
        "task": scenario.data.task if isinstance(scenario.data.task, str) else "classes",
    }


def score_table(record: Run) -> pd.DataFrame:
    """Return the leakage table with the settings of each cell, how its training ended (`steps`, `train_loss`), and
    `floor_l2_mean` as of `floors`."""
    settings = pd.DataFrame([settings_of(cell) for cell in record.cells.values()]).drop(columns=["num_private", "seed"])
    trained = record.clients.assign(train_loss=record.clients.last_loss)[["cell", "steps", "train_loss"]]
    scores = record.leakage.merge(settings, on="cell", validate="m:1").merge(trained, on="cell", validate="m:1")
    return scores.merge(floors(record), on=["cell", "attack"], validate="1:1")


def floors(record: Run) -> pd.DataFrame:
    """Return cell, attack and floor_l2_mean: the lower of two floors, as many public images as were returned and the
    mean public image, which is the nearer one if there are few images."""
    means = record.samples.groupby(["cell", "attack"])[["floor_l2", "mean_image_l2"]].mean()
    return means.min(axis=1).rename("floor_l2_mean").reset_index()


def floor_of(private: Tensor, public: Tensor, count: int) -> float:
    """Compute the floor outside of a run: mean L2 to `count` of the public images or to their mean, whichever is
    nearer. private, public: (N, C, H, W)."""
    drawn, _ = matched_l2(private, public[:count])
    return min(float(drawn.mean()), float(distances(private, public.mean(0, keepdim=True)).mean()))


def image_table(record: Run, extra: Sequence[str] = ()) -> pd.DataFrame:
    """Return reconstruction curves: for each network and attack, images by `rank` from 1, closest first, with `l2`,
    and, each sorted by itself, those of two floors: `floor_l2` of as many public images, `mean_image_l2` of their mean.

    extra: columns of the score table to add. `SCORES`, which are of a network as a whole, stand in the row of rank 1
    alone, where `networks` finds them.
    """
    keys, scales = ["cell", "attack"], ["l2", "floor_l2", "mean_image_l2"]
    samples = record.samples.sort_values([*keys, "l2"])
    groups = samples.groupby(keys)
    curves = samples[[*keys, "image"]].assign(rank=groups.cumcount() + 1)
    curves[scales] = groups[scales].transform(lambda values: values.sort_values().to_numpy())
    columns = list(dict.fromkeys(["num_private", "width", "dynamics", "seed", "attack", *extra]))
    scores = score_table(record)
    frame = curves.merge(scores[list(dict.fromkeys(["cell", *columns, *SCORES]))], on=keys, validate="m:1")
    frame.loc[frame["rank"] > 1, SCORES] = math.nan
    return frame.sort_values([*columns, "rank"])[[*columns, "rank", "image", *scales, *SCORES]].reset_index(drop=True)


def networks(data: pd.DataFrame) -> pd.DataFrame:
    """Return a row per network and attack, with its `SCORES`. data: as of `image_table`."""
    return data[data["rank"] == 1]


def spearman(frame: pd.DataFrame, first: str, second: str) -> float:
    """Rank correlation of two columns; NaN where one of them does not vary."""
    if frame[[first, second]].nunique().min() < 2:  # pandas would warn
        return math.nan
    return round(float(frame[first].corr(frame[second], method="spearman")), 9)  # a fraction, as bounds are


def spearman_within(frame: pd.DataFrame, first: str, second: str, groups: list[str]) -> float:
    """Return the mean over groups of the rank correlation within each: everything else stays the same there."""
    each = [spearman(group, first, second) for _, group in frame.groupby(groups)]
    return round(float(pd.Series(each).mean()), 9)


def falling(frame: pd.DataFrame, setting: str, value: str, groups: list[str]) -> Signs:
    """Count the steps from one value of a setting to the next, all others equal, in which `value` falls."""
    changes = frame.sort_values(setting).groupby(groups)[value].diff().dropna()
    return Signs.of(changes < 0)


def paired(frame: pd.DataFrame, key: str, better: object, worse: object, value: str, pair: list[str]) -> pd.DataFrame:
    """Return a row per pair of cells that differ in `key` alone: columns `better` and `worse` hold their `value`.

    Raises InputError if --set left one of the two out.
    """
    table = frame.pivot_table(value, pair, key)
    for missing in {better, worse} - set(table.columns):
        raise InputError(f"this experiment compares {key} {better} with {worse}: --set left {missing} out")
    return pd.DataFrame({"better": table[better], "worse": table[worse]}).dropna()


def binary_task(scores: pd.DataFrame) -> str:
    """Return the task of two groups that all classes are compared with."""
    found = [task for task in scores.task.unique() if task != "classes"]
    if not found:
        raise InputError("this experiment compares all classes with two groups: --set left data.task with one value")
    return str(found[0])
