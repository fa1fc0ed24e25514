"""Slopes against width of the Hessian norm, the kernel's change and the parameters' change, as the claims name them.

The claims are those of the rebuttal of Liu, Zhu and Belkin (2020): the kernel is constant where the model's Hessian is
small, and that is not lazy training.
"""

import math

import numpy as np
import pandas as pd

from simulator.paper.claims import Signs, Statistics

STEADY = ("tanh", "softmax", "bottleneck")  # outputs measured with one hidden activation, tanh
OPEN = ("softmax", "maxout")  # hidden non-linearities that the paper leaves open
BOUND = ["remainder", "sup_hessian"]  # columns of the networks that are narrow enough for them
LOSSES = ("mse", "cross_entropy", "hinge")
CASES = [*(("linear", loss) for loss in LOSSES), ("sigmoid", "mse")]  # output and loss of the networks trained


def hessian_statistics(table: pd.DataFrame, slopes: pd.DataFrame, radius: float, share: float) -> Statistics:
    """All statistics. table: one row per network. slopes: as of `slope_table`. radius: ‖Δθ‖₂ of the table. share: of
    its first value that a loss was brought down to."""
    table = table.reindex(columns=[*table.columns.drop(BOUND, errors="ignore"), *BOUND])  # wide networks have none
    found: dict[str, object] = {"radius": radius, "share": share}
    for quantity, name in (("kernel_change", "kernel"), ("hessian_norm", "hessian")):
        data = select(slopes, quantity)
        for output in ("linear", "sigmoid"):
            rows = data[data.output == output].set_index("activation")
            found |= {f"{name}_{output}": rows.slope, f"{name}_{output}_widest": span(rows.widest)}
        found[f"{name}_others"] = data[data.output.isin(STEADY)].set_index("output").slope
    bounds = table.remainder / (0.5 * table.sup_hessian * radius**2)
    smooth = bounds[(table.activation != "relu") & table.remainder.notna()]
    found |= {"bounds": list(smooth), "smooth_networks": len(smooth)}
    found |= {"largest_bound": smooth.max(), "median_bound": smooth.median()}
    kinked = bounds[(table.activation == "relu") & (table.output == "linear") & table.remainder.notna()]
    found |= kink_statistics(slopes) | {"unbounded": Signs.of(kinked > 1)}
    for output, loss in CASES:
        l2, linf = (
            select(slopes, name, "norms", output=output, loss=loss, output_bias=False)
            for name in ("delta_l2", "delta_linf")
        )
        found[f"{output}_{loss}"] = of_row("l2", l2) | of_row("linf", linf)
    found |= of_row("biased_linf", select(slopes, "delta_linf", "norms", output_bias=True))
    for activation in OPEN:
        change, norm = (
            select(slopes, name, "open", activation=activation) for name in ("kernel_change", "hessian_norm")
        )
        found[f"open_{activation}"] = of_row("change", change) | of_row("norm", norm)
    return found


def kink_statistics(slopes: pd.DataFrame) -> dict[str, object]:
    """The kernel's change behind a linear output with ReLU and with smooth activations; None where one is missing."""
    kernels = select(slopes, "kernel_change", output="linear").set_index("activation")
    names = ("relu_slope", "relu_narrowest", "relu_widest", "smooth_narrowest", "smooth_widest")
    if "relu" not in kernels.index or len(kernels) < 2:
        return dict.fromkeys(names)
    relu, smooth = kernels.loc["relu"], kernels.drop("relu")
    values = relu.slope, relu.narrowest, relu.widest, smooth.narrowest.max(), smooth.widest.max()
    return dict(zip(names, values, strict=True))


def select(slopes: pd.DataFrame, quantity: str, part: str = "data", **wanted: str | bool) -> pd.DataFrame:
    """The rows of one quantity, of one part of the tables, and with these settings."""
    rows = slopes[(slopes.quantity == quantity) & (slopes.part == part)]
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


def of_row(name: str, rows: pd.DataFrame) -> dict[str, float]:
    """The slope of the one row, and its means at both ends, as statistics called NAME, NAME_narrowest, NAME_widest."""
    (row,) = rows.itertuples()
    return {name: row.slope, f"{name}_narrowest": row.narrowest, f"{name}_widest": row.widest}


def span(values: pd.Series) -> list[float]:
    """[the least, the largest]."""
    return [values.min(), values.max()]


def slope(frame: pd.DataFrame, column: str) -> float:
    """d log(mean over seeds) / d log(width), by least squares."""
    means = frame.groupby("width")[column].mean().dropna()
    return float(np.polyfit(np.log(means.index), np.log(means), 1)[0]) if len(means) > 1 else math.nan


def slope_table(table: pd.DataFrame, open_cases: pd.DataFrame, norms: pd.DataFrame) -> pd.DataFrame:
    """Of each part (data, open, norms): output, activation, loss, output_bias, quantity, slope, means at both ends."""
    rows = []
    keys = ["output", "activation"]
    for part, frame, names, quantities in (
        ("data", table, keys, ("hessian_norm", "kernel_change")),
        ("open", open_cases, keys, ("hessian_norm", "kernel_change")),
        ("norms", norms, [*keys, "loss", "output_bias"], ("delta_l2", "delta_linf")),
    ):
        for key, group in frame.groupby(names, sort=False):
            for quantity in quantities:
                means = group.groupby("width")[quantity].mean()
                found = {"slope": slope(group, quantity), "narrowest": means.iloc[0], "widest": means.iloc[-1]}
                rows.append({"part": part, **dict(zip(names, key, strict=True)), "quantity": quantity, **found})
    return pd.DataFrame(rows)
