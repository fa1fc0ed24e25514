import pytest
import torch

from attacks import Knowledge, get_attack
from tests.attacks.conftest import MEAN, client, digits, generator, mlp


@pytest.mark.parametrize(
    ("mean", "std", "asked"),
    [
        (MEAN, None, ""),
        (0.9, None, "lie outside 0 to 1, as noise does it, too: does the mean 0.9 fit?"),
        (MEAN, (4.0,), f"lie outside 0 to 1, as noise does it, too: does the mean {MEAN} and the deviation 4 fit?"),
        (0.9, (0.1,), "lie within 0.87 to 0.97, of 0 to 1: does the mean 0.9 and the deviation 0.1 fit?"),
    ],
)
def test_a_mean_and_a_deviation_that_do_not_fit_are_asked_about(mean, std, asked):
    """Clients subtract MEAN from pixels in [0, 1], and divide by nothing."""
    observation = client(mlp(64), digits(4), 3)
    told = Knowledge(pixel_mean=(mean,), pixel_std=std)
    found = get_attack("span").run(observation, told, generator())
    said = " ".join(found.warnings)
    assert len(found.images) == 4 and ("fit?" in said) == bool(asked) and asked in said


@pytest.mark.parametrize(("std", "doubted"), [(0.5, True), (1.0, False)])
def test_pixels_that_are_cut_off_for_want_of_a_deviation_are_warned_of(std, doubted):
    """The mean is read off pixels that are black in every image; clients divide by std."""
    images = digits(4) / std
    found = get_attack("span").run(client(mlp(64), images, 3), Knowledge(), generator())
    best = torch.cdist(images.flatten(1), found.images.flatten(1)).min(1).values
    said = " ".join(found.warnings)
    assert found.pixel_mean == pytest.approx((MEAN / std,), abs=1e-3) and best.max() < 0.05  # the images are right
    assert bool((found.pixels() == 1).float().mean() > 0.1) == doubted
    assert ("pixel_std is unknown and was taken for 1" in said) == doubted == ("`images` are as the" in said)
