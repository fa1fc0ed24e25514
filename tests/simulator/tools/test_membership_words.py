"""Membership in words: thresholds and counts of residuals made by hand."""

import torch

from simulator.evaluation.candidate_images import membership_words


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


def test_without_outsiders_two_groups_are_told_apart_and_no_rate_is_claimed():
    (said,) = membership_words(residuals(1.5, 20.0, 0.2, 26.0), None, 2)
    assert said.startswith("2 of 4 candidates look like members: their scores are 20.00 to 26.00, all others' at most")
    assert "1.50" in said and "how many of them are false alarms is not known" in said
    (said,) = membership_words(residuals(1.5, 1.2, 0.9), None, 2)
    assert "form no two groups" in said
    (said,) = membership_words(residuals(9.0, 8.9, 8.8, 0.1), None, 2)  # a gap below more than there can be
    assert "form no two groups" in said
