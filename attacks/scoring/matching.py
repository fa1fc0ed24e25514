"""One-to-one matching of reconstructions to private images."""

import numpy as np
from scipy.optimize import linear_sum_assignment


def greedy_match(distance: np.ndarray) -> np.ndarray:
    """Loo et al.'s reconstruction curve: take the closest pair, remove both, repeat.

    distance: (N, M). Returns (N,) column of each row, or -1 for rows left over where M < N.
    """
    order = np.argsort(distance, axis=None, kind="stable")
    match = np.full(len(distance), -1)
    taken = np.zeros(distance.shape[1], dtype=bool)
    left = min(distance.shape)
    for flat in order:
        if left == 0:
            break
        row, column = divmod(int(flat), distance.shape[1])
        if match[row] < 0 and not taken[column]:
            match[row], taken[column], left = column, True, left - 1
    return match


def hungarian_match(cost: np.ndarray) -> np.ndarray:
    """The assignment of least total cost, (N, M) -> (N,) column of each row, or -1 for rows left over."""
    match = np.full(len(cost), -1)
    rows, columns = linear_sum_assignment(cost)
    match[rows] = columns
    return match
