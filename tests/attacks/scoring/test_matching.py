import itertools

import numpy as np

from attacks.scoring.images import greedy_match, hungarian_match


def greedy_by_definition(distance):
    """Take the closest pair, remove both, repeat: the text of the paper, on Python lists."""
    pairs = sorted((distance[i][j], i, j) for i in range(len(distance)) for j in range(len(distance[0])))
    match, used = [-1] * len(distance), set()
    for _, i, j in pairs:
        if match[i] < 0 and j not in used:
            match[i] = j
            used.add(j)
    return match


def test_greedy_takes_the_closest_pair_first():
    distance = np.array([[1.0, 2.0], [0.5, 9.0]])
    assert greedy_match(distance).tolist() == [1, 0]


def test_greedy_against_its_definition_for_every_shape():
    rng = np.random.default_rng(0)
    for rows, columns in itertools.product(range(1, 6), range(0, 7)):
        distance = rng.random((rows, columns))
        expected = greedy_by_definition(distance.tolist()) if columns else [-1] * rows
        assert greedy_match(distance).tolist() == expected


def test_greedy_against_its_definition_where_many_pairs_are_equally_close():
    rng = np.random.default_rng(2)
    for rows, columns in ((9, 9), (5, 30), (30, 5), (12, 13)):
        for most in (1, 2, 5, 50):
            distance = rng.integers(0, most, (rows, columns)).astype(float)
            assert greedy_match(distance).tolist() == greedy_by_definition(distance.tolist())


def test_hungarian_against_all_permutations():
    rng = np.random.default_rng(1)
    for _ in range(20):
        cost = rng.random((4, 5))
        best = min(itertools.permutations(range(5), 4), key=lambda p: sum(cost[i, j] for i, j in enumerate(p)))
        assert hungarian_match(cost).tolist() == list(best)


def test_rows_without_a_partner_are_marked():
    distance = np.array([[3.0], [1.0], [2.0]])
    assert greedy_match(distance).tolist() == [-1, 0, -1]
    assert hungarian_match(distance).tolist() == [-1, 0, -1]
