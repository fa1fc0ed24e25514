"""Membership in words: thresholds and counts of residuals made by hand."""

import pytest
import torch
from torch import nn

from attacks import Knowledge
from attacks.calibration import Calibrated
from attacks.membership import MembershipTest
from simulator.evaluation.candidate_images import membership_words, spanned, spans_images
from simulator.reports.verdict import verdict
from simulator.results.schema import LEAKAGE
from tests.attacks.conftest import client, digits
from tests.simulator.reports.conftest import leakage_row


def residuals(*scores):
    return (-torch.tensor(scores)).exp()


def test_a_threshold_is_calibrated_on_images_that_are_no_members():
    outsiders = residuals(*torch.linspace(0, 1, 200).tolist())
    (said,) = membership_words(residuals(20.0, 18.0, 0.5, 0.2), outsiders, 2)
    assert said.startswith("2 of 4 candidates are told to be members at a false-positive rate of at most 1 %")
    assert "score above 0.99, which at most 1 of 200 images" in said  # the second highest of 0, 1/199, …, 1: 2 of 201


def test_more_outsiders_tell_a_stricter_rate_and_too_few_none():
    (said,) = membership_words(residuals(9.0, 0.1), residuals(*[0.0] * 1000), 1)
    assert "rate of at most 0.1 %" in said
    few, gap = membership_words(residuals(9.0, 0.1), residuals(0.0, 0.1), 1)
    assert "2 images that are no members are too few" in few and gap.startswith("1 of 2 candidates look like members")


def test_as_many_as_by_chance_is_said_to_be_chance():
    scores = torch.linspace(0, 1, 100).tolist()
    (said,) = membership_words(residuals(*scores), residuals(*scores), 10)
    assert "this update does not tell" in said


@pytest.mark.parametrize("told", [0, 1, 2, 3])
def test_the_command_and_the_verdict_say_the_same_of_the_same_candidates(told):
    """2 of 20 at a rate of 1 % are 0.027 likely by chance, 1 of 20 is 0.17."""
    outsiders = residuals(*torch.linspace(0, 1, 99).tolist())
    candidates = residuals(*[9.0] * told, *[0.1] * (20 - told))
    (said,) = membership_words(candidates, outsiders, 4)
    row = leakage_row(1, 0, 0) | Calibrated.of(candidates, outsiders).columns() | {"membership_auc": None}
    found = verdict(LEAKAGE.frame([row]))
    assert ("does not tell" not in said) == (told >= 2) == (found.level == "partly exposed")
    assert ("membership leaks" in found.headline) == (told >= 2)


def test_an_update_of_a_clear_rank_tells_by_its_span_where_nothing_calibrates():
    (said,) = membership_words(residuals(20.0, 18.0, 4.0), None, 2, clear_rank=True)
    assert said.startswith("2 of 3 candidates lie in the span of the update (score above 4.61)")


@pytest.mark.parametrize("training", [False, True])
def test_differences_of_images_are_no_span_of_them(training):
    """BatchNorm that normalizes the batch makes the signals of a unit add up to zero, so that x lies off the span."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10))
    images = digits(8)
    observation = client(model.train(training), images, 1)
    residual = MembershipTest.of(observation, Knowledge()).residual(images)
    assert spans_images(observation) is not training
    assert training or spanned(residual) == 8


def test_without_outsiders_two_groups_are_told_apart_and_no_rate_is_claimed():
    (said,) = membership_words(residuals(1.5, 20.0, 0.2, 26.0), None, 2)
    assert said.startswith("2 of 4 candidates look like members: their scores are 20.00 to 26.00, all others' at most")
    assert "1.50" in said and "how many of them are false alarms is not known" in said
    (said,) = membership_words(residuals(1.5, 1.2, 0.9), None, 2)
    assert "form no two groups" in said and "give them with --public" in said
    (said,) = membership_words(residuals(9.0, 8.9, 8.8, 0.1), None, 2)  # a gap below more than there can be
    assert "form no two groups" in said
