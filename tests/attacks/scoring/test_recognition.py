"""Likeness up to what an eye overlooks, on images made by hand."""

import numpy as np
import pytest
import torch

from attacks.scoring import recognition
from attacks.scoring.images import Pool
from attacks.scoring.leakage import score
from attacks.scoring.recognition import Views, smoothed, threshold, unmoved


def smooth(count, seed=0, shape=(1, 20, 20)):
    """Images of coarse structure, as photographs have it."""
    coarse = torch.rand((count, shape[0], 5, 5), generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bilinear", align_corners=True)


def columns(private, returned, public=None):
    pool = Pool(smooth(500, seed=1, shape=private.shape[1:]) if public is None else public, private)
    return score(private, returned, pool, np.random.default_rng(0)).columns()


def likeness(candidates, images, least=0.0):
    return Views(smoothed(candidates)).likeness(unmoved(smoothed(images)), least)


CHANGES = {
    "as it is": lambda images: images,
    "inverted": lambda images: 1 - images,
    "mirrored": lambda images: images.flip(3),
    "shifted by two": lambda images: images.roll((2, -2), (2, 3)),
    "half the contrast and brighter": lambda images: 0.3 * images + 0.6,
    "inverted, mirrored and shifted": lambda images: 1 - images.flip(3).roll(1, 2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_eye_knows_an_image_that_is(change, channels):
    private = smooth(6, shape=(channels, 20, 20))
    found = columns(private, CHANGES[change](private))
    assert found["recognized"] == 6 and found["recognized_fraction"] == 1.0
    if change != "as it is":
        assert found["recovered"] == 0


@pytest.mark.parametrize("change", [name for name in CHANGES if "shifted" not in name])
def test_the_likeness_of_an_image_does_not_know_gain_offset_sign_and_mirror(change):
    images = smooth(3)
    assert np.diag(likeness(CHANGES[change](images), images)) == pytest.approx(1.0, abs=1e-5)


def test_a_flat_image_is_like_none():
    assert likeness(torch.full((1, 1, 20, 20), 0.5), smooth(3)).max() == 0.0


@pytest.mark.parametrize("near", [0, 10**9], ids=["all in full", "one by one"])
def test_what_may_be_left_out_of_many_pairs_is_below_what_was_asked_for(monkeypatch, near):
    images = smooth(60) + 0.2 * torch.rand((60, 1, 20, 20), generator=torch.Generator().manual_seed(3))
    candidates = torch.cat([smooth(40, seed=2), CHANGES["shifted by two"](images[:5])])
    full = likeness(candidates, images)
    least = float(np.quantile(full, 0.9))
    monkeypatch.setattr(recognition, "FEW", 0)
    monkeypatch.setattr(recognition, "MOST_NEAR", near)
    monkeypatch.setattr(recognition, "ROWS", 7)
    some = likeness(candidates, images, least)
    assert some[full >= least] == pytest.approx(full[full >= least], abs=1e-5)
    assert (some <= full + 1e-5).all() and ((some == 0).mean() > 0.5 or near == 0)


def test_likeness_is_the_largest_correlation_of_windows_by_numpy():
    image, candidate = torch.rand(1, 1, 9, 9), torch.rand(1, 1, 9, 9)  # small: one pixel of margin, every pixel counts

    def mean3(x):
        padded = np.pad(x, 1, constant_values=np.nan)
        return np.array([[np.nanmean(padded[i : i + 3, j : j + 3]) for j in range(9)] for i in range(9)])

    own = mean3(image[0, 0].numpy())[1:8, 1:8].ravel()
    views = [mean3(x)[i : i + 7, j : j + 7].ravel() for x in (candidate[0, 0].numpy(), candidate[0, 0].numpy()[:, ::-1])
             for i in range(3) for j in range(3)]  # fmt: skip
    expected = max(abs(np.corrcoef(own, view)[0, 1]) for view in views)
    assert likeness(candidate, image)[0, 0] == pytest.approx(expected, abs=1e-5)


def test_a_change_that_an_eye_sees_is_none():
    private = smooth(20)
    assert columns(private, private.transpose(2, 3))["recognized"] <= 1  # turned by a quarter
    assert columns(private, private.roll(8, 2))["recognized"] <= 1


def test_other_images_are_known_for_one_private_image_in_a_hundred_at_most():
    """A binomial of 300 at 0.01 is above 8 in 0.4 %."""
    found = [columns(smooth(20, 100 + seed), smooth(20, 200 + seed), smooth(500, 300 + seed)) for seed in range(15)]
    assert sum(row["recognized"] for row in found) <= 8
    assert sum(20 * row["floor_recognized_fraction"] for row in found) <= 8


def test_one_in_a_hundred_private_images_may_be_taken_for_a_public_one():
    """Of 1,000 pairs the threshold leaves out (0.01 · 1001 / 5) - 1, rounded down: one is above it where 5 return."""
    likeness = np.arange(1000.0).reshape(2, 500) / 1000
    assert threshold(likeness, 5) == 0.998  # one of 1,000 is above
    assert threshold(likeness, 10) == 0.999  # none is
    assert np.isnan(threshold(likeness, 11))  # even the largest is passed too often
    assert threshold(np.where(likeness > 0.9, np.nan, likeness), 5) == pytest.approx(0.9)  # copies are no pairs


def test_with_few_public_images_there_is_no_threshold_and_no_score():
    private = smooth(4)
    found = columns(private, private, smooth(10, seed=1))
    assert found["recognized"] is None and np.isnan(found["recognized_threshold"])


def test_images_of_a_few_pixels_are_not_compared():
    found = columns(torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4), torch.rand(500, 1, 4, 4))
    assert found["recognized"] is None


def test_where_nothing_is_returned_nothing_is_recognized_and_no_public_images_are_compared():
    private = smooth(4)
    found = columns(private, private[:0])
    assert (found["recognized"], found["recognized_threshold"]) == (0, 1.0)
