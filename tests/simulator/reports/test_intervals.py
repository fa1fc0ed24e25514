"""Intervals of clustered scores against hand-made cases, tables of Clopper and Pearson, and Student's t."""

import math

import numpy as np
import pandas as pd
import pytest

from simulator.reports.benchmark_table import cluster_interval, half_width, paired_difference, share_interval, sign_test


def scores(*rows):
    """rows: (seed, client, score)."""
    frame = pd.DataFrame(rows, columns=["seed", "client", "score"])
    return frame.set_index(["seed", "client"]).score


def test_half_width_is_student_s():
    # mean 2, standard deviation 1 of three: t(0.975, 2) = 4.302653 times 1 / √3
    assert half_width(pd.Series([1.0, 2.0, 3.0])) == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert math.isnan(half_width(pd.Series([1.0]))) and math.isnan(half_width(pd.Series([1.0, np.nan])))


@pytest.mark.parametrize(("count", "upper"), [(1, 0.975), (4, 0.6024), (10, 0.3085), (20, 0.1684)])
def test_no_client_of_n_leaves_the_interval_of_clopper_and_pearson(count, upper):
    """Upper ends of 0 of n in the usual tables, 1 − 0.025^(1/n)."""
    none = scores(*((i % 2, i, 0.0) for i in range(count)))
    assert cluster_interval(none) == pytest.approx((0.0, upper), abs=1e-4)
    assert cluster_interval(none + 1) == pytest.approx((1 - upper, 1.0), abs=1e-4)
    assert cluster_interval(none, -1.0, 1.0) == pytest.approx((-upper, upper), abs=1e-4)  # of differences


def test_an_interval_of_clusters_is_as_wide_as_the_seeds_differ():
    """Forty clients of two seeds, all alike within a seed: what is drawn are the seeds, both or one of them twice."""
    apart = scores(*((seed, client, float(seed)) for seed in (0, 1) for client in range(20)))
    assert cluster_interval(apart) == (0.0, 1.0)
    mixed = scores(*((seed, client, float(client % 2)) for seed in (0, 1) for client in range(20)))
    low, high = cluster_interval(mixed)
    # means of 20 coins, 2 seeds that are alike: deviation between √(0.25 / 40) and that of the same clients twice
    assert 0.3 < low < 0.37 and 0.63 < high < 0.7
    assert cluster_interval(mixed) == (low, high)  # the generator is the interval's own
    assert all(map(math.isnan, cluster_interval(scores((0, 0, np.nan)))))


def test_pairs_are_clients_of_the_same_seed_else_seeds():
    plain = scores((0, 0, 1.0), (0, 1, 0.5), (1, 0, 1.0))
    found = paired_difference(scores((0, 0, 0.25), (0, 1, np.nan), (1, 0, 1.0), (2, 0, 9.0)), plain)
    assert found.to_dict() == {(0, 0): -0.75, (1, 0): 0.0}
    hidden = paired_difference(scores((0, -1, 0.25), (1, -1, 0.5)), plain)
    assert hidden.to_dict() == {(0, -1): -0.5, (1, -1): -0.5}
    assert paired_difference(scores(), plain).empty


def test_three_of_three_is_no_evidence():
    assert sign_test(scores((0, 0, -1.0), (1, 0, -1.0), (2, 0, -0.5))) == pytest.approx(0.25)
    assert sign_test(scores(*((seed, 0, -1.0) for seed in range(6)))) == pytest.approx(2 / 64)
    assert math.isnan(sign_test(scores((0, 0, 0.0))))


def test_the_interval_of_a_share_stays_between_nothing_and_everything():
    """Student's t of two seeds: 12.7062 · 0.0566 / √2 = 0.508 to either side of 0.22, and 0.0635 of 0.5."""
    assert share_interval(pd.Series([0.18, 0.26])) == pytest.approx((0.0, 0.7282), abs=1e-4)
    assert share_interval(pd.Series([0.495, 0.505])) == pytest.approx((0.4365, 0.5635), abs=1e-4)
    assert np.isnan(share_interval(pd.Series([0.5]))).all()
