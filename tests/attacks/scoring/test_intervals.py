import math

import pytest
import torch
from scipy.stats import beta

from attacks.calibration import auc_interval, exact_interval
from attacks.membership import MembershipScore


def test_exact_intervals_at_both_ends_are_closed_forms():
    assert exact_interval(8, 8) == pytest.approx((0.025 ** (1 / 8), 1.0))
    assert exact_interval(0, 10) == pytest.approx((0.0, 1 - 0.025 ** (1 / 10)))


def test_exact_intervals_are_quantiles_of_the_beta_distribution():
    assert exact_interval(7, 20) == pytest.approx((beta.ppf(0.025, 7, 14), beta.ppf(0.975, 8, 13)))
    assert exact_interval(7, 20) == pytest.approx((0.1539, 0.5922), abs=5e-5)  # as tables have it


def test_the_interval_of_an_auc_of_one_pair_is_wilsons():
    """One member and one outsider: s(θ)² = θ (1 − θ), so 1 is within z s(θ) from θ = 1 / (1 + z²) on."""
    low, high = auc_interval(1.0, 1, 1)
    assert (low, high) == (pytest.approx(1 / (1 + 1.959964**2), abs=1e-6), 1.0)


def test_the_ends_of_an_auc_interval_are_where_the_estimate_is_z_standard_errors_away():
    for auc, members, outsiders in ((0.8, 8, 500), (0.5, 20, 20), (0.99, 100, 1000)):
        for theta in auc_interval(auc, members, outsiders):
            q1, q2, both = theta / (2 - theta), 2 * theta**2 / (1 + theta), (members + outsiders) / 2 - 1
            variance = theta * (1 - theta) + both * (q1 - theta**2) + both * (q2 - theta**2)  # Hanley and McNeil
            assert abs(auc - theta) == pytest.approx(1.959964 * math.sqrt(variance / members / outsiders), rel=1e-4)


def test_a_rate_is_left_out_where_outsiders_cannot_tell_it():
    members = torch.zeros(8)
    few, hundred, thousand = (MembershipScore.of(members, 1 + torch.arange(count)) for count in (99, 100, 1000))
    assert math.isnan(few.columns()["membership_tpr_1pct"]) and math.isnan(hundred.columns()["membership_tpr"])
    assert hundred.columns()["membership_tpr_1pct"] == 1.0 == thousand.columns()["membership_tpr"]
    assert thousand.columns()["membership_tpr_low"] == pytest.approx(0.025 ** (1 / 8))
