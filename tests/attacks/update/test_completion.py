import pytest
import torch

from attacks import Knowledge
from attacks.update.intervals import complete, find_rank, known_intervals, unknowns


def low_rank(rows=60, columns=40, rank=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, rank, generator=generator, dtype=torch.float64) @ torch.randn(
        rank, columns, generator=generator, dtype=torch.float64
    )


def at_random(matrix, share):
    kept = torch.rand(matrix.shape, generator=torch.Generator().manual_seed(1)) < share
    return known_intervals({"a": matrix * kept}, Knowledge(kept_fraction=min(1.0, share + 0.1)))["a"]


def test_unknowns_of_rank_one_are_those_of_two_vectors_up_to_scale():
    assert unknowns(5, 7, 1) == 5 + 7 - 1 and unknowns(5, 7, 5) == 35


@pytest.mark.parametrize("share", [0.7, 0.4])
def test_a_masked_matrix_of_low_rank_is_completed(share):
    matrix = low_rank()
    found = complete(at_random(matrix, share), 3)
    assert found.misfit < 1e-6
    assert (found.matrix - matrix).norm() < 1e-4 * matrix.norm()


def test_intervals_tell_more_than_what_was_sent():
    """Few levels and many small entries, as in an update: most are rounded to 0, which is no noise."""
    generator = torch.Generator().manual_seed(0)
    heavy = [torch.randn(size, 3, generator=generator, dtype=torch.float64) ** 3 for size in (150, 80)]
    matrix = heavy[0] @ heavy[1].T
    step = (matrix.max() - matrix.min()) / 15
    sent = matrix.min() + step * ((matrix - matrix.min()) / step).round()
    found = complete(known_intervals({"a": sent}, Knowledge(quantization_bits=4))["a"], 3)
    left, values, right = torch.linalg.svd(sent, full_matrices=False)
    plain = left[:, :3] * values[:3] @ right[:3]
    assert (found.matrix - matrix).norm() < 0.7 * (plain - matrix).norm()


def test_the_upper_part_of_the_entries_bounds_the_others():
    matrix = low_rank()
    threshold = matrix.abs().flatten().kthvalue(int(0.7 * matrix.numel())).values
    sent = matrix * (matrix.abs() > threshold)
    found = complete(known_intervals({"a": sent}, Knowledge(kept_fraction=0.3))["a"], 3)
    assert (found.matrix - matrix).norm() < 0.3 * (sent - matrix).norm()


def test_rank_is_where_held_out_entries_are_explained():
    generator = torch.Generator().manual_seed(0)
    assert find_rank(at_random(low_rank(), 0.7), 12, generator) == 3
    assert find_rank(at_random(low_rank(rank=6), 0.8), 12, generator) == 6
