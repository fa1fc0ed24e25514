"""The bias of raw pixels at a small rate, of which float32 stores little."""

import torch

from attacks.span.evidence.rounding import steady_bias
from attacks.span.sparse_duals import DualSpace
from attacks.update.spectrum import Spectrum

UNITS, PIXELS, IMAGES = 256, 300, 3


def trained(seed, noise=0.0, signal=3e-9):
    """[W | b] before and after one step on images of 0 to 255, as float32 stores them, and the images."""
    torch.manual_seed(seed)
    images = torch.nn.functional.pad(255 * torch.rand(IMAGES, PIXELS).double(), (0, 1), value=1.0)
    initial = ((2 * torch.rand(UNITS, PIXELS + 1) - 1) / PIXELS**0.5).double()
    signals = torch.randn(UNITS, IMAGES).double() * (torch.rand(UNITS, IMAGES) < 0.5) * signal
    change = signals @ images
    final = (initial + change + noise * torch.randn_like(change)).float().double()
    return initial, final, images[:, :-1]


def errors(seed, noise=0.0):
    """How far the sizes of the images are off, as a share: by all units alike, by the steady bias, and as expected."""
    initial, final, images = trained(seed, noise)
    spectrum = Spectrum.of(final - initial)
    space = DualSpace.of(initial, final, spectrum, IMAGES)
    y = images @ torch.linalg.pinv(space.values[:, None] * space.rows[:, :-1])
    plain = (y * space.values @ space.rows[:, -1] - 1).abs()
    moved = (final != initial).any(1)
    found, deviation = (part[moved] for part in steady_bias(initial, final, spectrum, IMAGES))
    size = y @ torch.linalg.lstsq(space.left, found[:, None]).solution[:, 0]
    covariance = space.with_bias_error(deviation).last
    return plain, (size - 1).abs(), (y @ covariance * y).sum(1).sqrt()


def test_biases_near_zero_tell_the_size_of_images_that_rounding_hides():
    """Ten clients of three images, each as far off as expected."""
    plain, steady, expected = (torch.cat(part) for part in zip(*map(errors, range(10)), strict=True))
    assert plain.median() > 2 * steady.median()
    assert 0.5 < (steady / expected).square().mean().sqrt() < 2


def test_the_size_is_told_as_exactly_as_expected_beside_a_little_noise():
    """Of half the size of rounding in the largest weights."""
    _, steady, expected = (torch.cat(part) for part in zip(*[errors(s, 5e-10) for s in range(10)], strict=True))
    assert 0.5 < (steady / expected).square().mean().sqrt() < 2


def test_where_noise_was_added_the_bias_stays_as_it_was_sent():
    for seed in range(10):
        initial, final, _ = trained(seed, noise=1e-8)
        assert steady_bias(initial, final, Spectrum.of(final - initial), IMAGES) is None


def test_a_bias_that_rounding_hardly_takes_from_stays_as_it_was_sent():
    initial, final, _ = trained(0)
    assert steady_bias(initial, final, Spectrum.of(final - initial), 0) is None
    initial, final, _ = trained(0, signal=1e-5)
    assert steady_bias(initial, final, Spectrum.of(final - initial), IMAGES) is None
