import math

import pytest
import torch
from torch.nn.functional import conv2d

from attacks.span.maps.inversion import (
    Inverted,
    MapTarget,
    PixelSpace,
    Scales,
    dead_leaves,
    invert_maps,
    total_variation,
)
from attacks.span.thresholds import MAP_INVERSION, SINGLE_IMAGE, Descent
from tests.attacks.conftest import digits

MEAN = 0.3  # what `digits` subtracts


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(MAP_INVERSION, "descent", Descent(200, 0.05))
    monkeypatch.setattr(MAP_INVERSION, "pilot", Descent(100, 0.05))


def inverted(maps, images, seed=0):
    bounds = torch.full((1, 1, 1, 1), -MEAN), torch.full((1, 1, 1, 1), 1 - MEAN)
    generator = torch.Generator().manual_seed(seed)
    return invert_maps(MapTarget(maps, maps(images)), PixelSpace((1, 8, 8), bounds), generator)


def test_images_are_found_through_rectified_maps_that_determine_them():
    """Both signs of 3 x 3 convolutions behind a ReLU, stride 2: 16 · 16 entries for 64 pixels."""
    kernels = torch.randn(8, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    images = digits(3).view(3, 1, 8, 8)
    found = inverted(lambda x: conv2d(x, torch.cat([kernels, -kernels]), stride=2, padding=1).relu(), images)
    assert ((found.images - images).square().mean((1, 2, 3)) < 0.01).all()  # 20 dB
    assert (found.residual < 0.1).all() and found.trusted.all()
    assert found.images.min() >= -MEAN and found.images.max() <= 1 - MEAN


def test_the_likeliest_images_are_never_trusted_where_maps_have_fewer_entries_than_pixels(monkeypatch):
    """Every other row: smooth decoys come back from it with most of their contrast, and so do smooth images."""
    monkeypatch.setattr(MAP_INVERSION, "few_descent", Descent(200, 0.05))
    hill = 0.4 * (math.pi * torch.arange(8.0) / 4).sin().view(1, 1, 8, 1)
    images = torch.cat([0.2 + hill, 0.2 - hill]).expand(2, 1, 8, 8)
    found = inverted(lambda x: x[:, :, ::2], images)
    assert ((found.images - images).square().mean((1, 2, 3)) < 0.01).all()  # 20 dB
    assert not found.trusted.any() and (found.residual < 0.2).all()


def test_the_prior_is_that_of_correlations_that_fall_exponentially():
    """Of one wave of four pixels' length and amplitude A the spectrum of the whole is A²/2; a grey one of colour C/(C −
    1) times the colours' share of the variance counts the more. Spectrum of exp(−d / ℓ) in the plane at k = π/2."""
    space = PixelSpace((3, 8, 8), None)
    wave = 0.5 * torch.tensor([1.0, 0, -1, 0, 1, 0, -1, 0]).expand(1, 1, 8, 8)
    length = 8 * SINGLE_IMAGE.length
    variance = 2 * math.pi * length**2 / (1 + (length * math.pi / 2) ** 2) ** 1.5 + SINGLE_IMAGE.grain
    expected = 0.5**2 / 2 / (SINGLE_IMAGE.deviation**2 * variance)
    assert space.improbability(wave.expand(1, 3, 8, 8)).item() == pytest.approx(expected, rel=1e-4)
    green = wave * torch.tensor([-1.0, 2.0, -1.0]).view(1, 3, 1, 1)
    assert space.improbability(green).item() == pytest.approx(6 / 1.5 / SINGLE_IMAGE.color_share * expected, rel=1e-4)


def test_nothing_is_inverted_where_decoys_are_not_found():
    """Waves of much shorter length than the range of pixels: everywhere is a local minimum."""
    mixing = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    found = inverted(lambda x: (20 * x.flatten(1) @ mixing).sin(), digits(3).view(3, 1, 8, 8))
    assert found is None


def test_the_same_generator_gives_the_same_bits(monkeypatch):
    monkeypatch.setattr(MAP_INVERSION, "descent", Descent(20, 0.05))
    images = digits(2).view(2, 1, 8, 8)
    once, again = (inverted(lambda x: x[:, :, ::2], images) for _ in range(2))
    assert torch.equal(once.images, again.images)


def test_sizes_are_halved_up_to_one_pixel_and_added_up():
    scales = Scales.of((3, 5, 8))
    assert scales.sizes == ((1, 1), (2, 2), (3, 4), (5, 8))
    ones = [torch.ones(2, 3, *size) for size in scales.sizes]
    assert torch.allclose(scales.images(ones), torch.full((2, 3, 5, 8), 4.0))


def test_the_total_variation_is_coupled_over_channels():
    """One step of height 1 in both of two channels, along 4 of 16 pixels: √2 · 4 / 16."""
    image = torch.zeros(1, 2, 4, 4)
    image[..., 2:] = 1
    assert total_variation(image).item() == pytest.approx(2**0.5 / 4, abs=1e-4)


def test_the_misfit_is_relative_to_each_wanted_map():
    target = MapTarget(lambda x: x, torch.tensor([1.0, 2.0]).view(2, 1, 1, 1))
    images = torch.tensor([0.0, 0.0, 1.0, 1.0]).view(4, 1, 1, 1)
    assert target.misfit(images).tolist() == pytest.approx([1, 1, 0, 0.25])


def test_an_image_is_trusted_where_decoys_of_more_exact_maps_come_back():
    found = Inverted(torch.zeros(4, 1, 1, 1), torch.tensor([0.3, 0.1, 0.4, 0.2]), torch.tensor([1.5, 0.2, 0.3, 0.5]))
    assert found.trusted.tolist() == [False, True, False, True]


def test_decoys_are_drawn_by_the_generator_and_have_unit_contrast():
    decoys = dead_leaves(3, (3, 8, 12), torch.Generator().manual_seed(0))
    assert decoys.shape == (3, 3, 8, 12) and decoys.mean((1, 2, 3)).abs().max() < 1e-5
    assert torch.allclose(decoys.std((1, 2, 3)), torch.ones(3))
    assert torch.equal(decoys, dead_leaves(3, (3, 8, 12), torch.Generator().manual_seed(0)))
