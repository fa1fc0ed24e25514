"""Thresholds from images held out: rates and probabilities that counting gives."""

import pytest
import torch

from attacks.calibration import Calibrated


def residuals(*scores):
    return (-torch.tensor(scores, dtype=torch.float64)).exp()


def test_the_strictest_rate_that_so_many_outsiders_keep():
    outsiders = torch.linspace(0, 1, 199).tolist()  # at 1 % of 200 ranks, one outsider is above: (1 + 1) / 200
    found = Calibrated.of(residuals(0.9, 0.997, 7.0), residuals(*outsiders))
    assert (found.rate, found.passed, found.told, found.members) == (0.01, 1, 2, (False, True, True))
    assert found.threshold == pytest.approx(197 / 198)
    assert Calibrated.of(residuals(1.0), residuals(*[0.0] * 999)).rate == 0.001
    assert Calibrated.of(residuals(1.0), residuals(*[0.0] * 8)) is None


def test_how_likely_as_many_are_by_chance_is_a_matter_of_ranks():
    """Two candidates among nine outsiders, all alike: one of them is the largest of 11 with probability 2/11, both are
    the largest two with probability 1/55."""
    outsiders = residuals(*[0.1 * i for i in range(9)])
    assert Calibrated.of(residuals(5.0, 0.0), outsiders).p == pytest.approx(2 / 11)
    assert Calibrated.of(residuals(5.0, 6.0), outsiders).p == pytest.approx(1 / 55)
    assert Calibrated.of(residuals(0.0, 0.1), outsiders).p == 1.0


def test_false_alarms_keep_the_rate():
    """Of candidates that are no members, over 2,000 draws."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(2000, 40, generator=generator, dtype=torch.float64)
    told = [Calibrated.of(draw[:10], draw[10:]).told for draw in draws]  # 30 outsiders: at most 10 %
    assert sum(told) / 20_000 == pytest.approx(3 / 31, abs=0.01)


def test_equal_scores_are_no_members():
    assert Calibrated.of(residuals(0.0, 0.0), residuals(*[0.0] * 20)).told == 0
