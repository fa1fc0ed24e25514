"""One-to-one matching of reconstructions to private images."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attacks.interface.errors import InputError


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


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances of flattened images, (N, M), in float64."""
    if len(b) == 0:
        return torch.zeros((len(a), 0), dtype=torch.float64)
    return torch.cdist(a.flatten(1).double(), b.flatten(1).double(), compute_mode="donot_use_mm_for_euclid_dist")


def matched_l2(private: Tensor, candidates: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """((N,) distances of the greedy matching, (N,) which candidate). Raises InputError where there are fewer than N."""
    if len(candidates) < len(private):
        raise InputError(f"{len(candidates)} candidates cannot be matched to {len(private)} images")
    table = distances(private, candidates).numpy()
    match = greedy_match(table)
    return table[np.arange(len(table)), match], match
