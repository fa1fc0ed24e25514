"""The floor of a score: what an attacker who knows nothing gets."""

import numpy as np
import pandas as pd

from simulator.results.columns import Column

FLOORS = ("floor_{}", "mean_image_{}")  # the columns of a score's floors: as many public images, and their mean


def better_floor(row: pd.Series, column: Column) -> float:
    """The better of both in a row of the leakage table; NaN where the score has none. Older runs lack the second."""
    known = [row.get(floor.format(column.name)) for floor in FLOORS]
    return column.better([float(value) for value in known if not pd.isna(value)] or [np.nan])
