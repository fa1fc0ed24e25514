"""Names beside a panel, each with its marker and joined to its point by a thin line: colours alone name nothing."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from simulator.reports.drawing import Style

LINE = 0.165  # inches that a name takes
NEAR = 1.04  # x of the names, in widths of the panel


def height_for(names: int, least: float) -> float:
    """Of a panel beside which so many names stand, in inches."""
    return max(least, LINE * names + 0.3)


def name_points(axis: plt.Axes, points: dict[str, tuple[float, float]], look: dict[str, Style]) -> None:
    """Write each name beside the panel, as near to the height of its point as the others leave room for.

    points: (x, y) in data coordinates. The panel's limits must be set, and its figure not change size after.
    """
    if not points:
        return
    height = axis.bbox.height / axis.figure.dpi
    names = sorted(points, key=lambda name: (points[name][1], points[name][0], name))
    wanted = [float(axis.transAxes.inverted().transform(axis.transData.transform(points[name]))[1]) for name in names]
    for name, y in zip(names, apart(wanted, LINE / height), strict=True):
        style = look[name]
        line = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.6, "alpha": 0.7, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", points[name], (NEAR, y), textcoords="axes fraction", annotation_clip=False, arrowprops=line)
        axis.plot(NEAR, y, transform=axis.transAxes, clip_on=False, markersize=5, **style)
        axis.text(NEAR + 0.02, y, name, transform=axis.transAxes, va="center", fontsize=9)


def apart(wanted: Sequence[float], gap: float) -> np.ndarray:
    """Heights at least `gap` apart, in the order of `wanted`, which ascends, and near to it; between 0 and 1
    where there is room for all."""
    steps = gap * np.arange(len(wanted))
    free = np.maximum.accumulate(np.asarray(wanted) - steps)  # without the gaps: may coincide, may not descend
    return np.clip(free, 0.0, max(0.0, 1.0 - steps[-1])) + steps
