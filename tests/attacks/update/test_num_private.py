import pytest
import torch
from torch import nn

from attacks import Observation
from attacks.update.private_set import infer_pixel_mean
from attacks.update.spectrum import ImageCount, Spectrum, gavish_donoho, infer_image_count
from tests.attacks.conftest import client, digits, mlp


def low_rank(out, inputs, rank, seed=0):
    g = torch.Generator().manual_seed(seed)
    u, v = torch.randn((out, rank), generator=g), torch.randn((rank, inputs), generator=g)
    return (u @ v).double()


def noise(shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gavish_donoho_square_matrix():
    assert gavish_donoho(100, 100) == pytest.approx(2.86, abs=0.001)  # the constant of their abstract, 2.858


@pytest.mark.parametrize("rank", [1, 5, 20, 60])
def test_rank_of_a_noisy_low_rank_update(rank):
    update = low_rank(256, 200, rank) + 1e-4 * noise((256, 200))
    assert Spectrum.of(update).count() == rank


def test_dead_units_and_constant_pixels_make_no_false_gap():
    update = low_rank(256, 200, 12) + 1e-5 * noise((256, 200))
    update[::3] = 0
    update[:, ::4] = 0
    assert Spectrum.of(update).count() == 12


def test_rounding_errors_of_a_long_training_are_no_images():
    # measured on 20 images and 794 steps: 0.012 for the last image, then 2e-5, then a floor of 2e-6
    update = low_rank(256, 200, 20) + 1e-5 * noise((256, 200)) + 1e-5 * low_rank(256, 200, 1, seed=2)
    assert Spectrum.of(update).count() == 20


def trained_pair(images, optimizer=torch.optim.SGD, lr=0.1):
    return client(mlp(128, depth=1), images, optimizer=optimizer, lr=lr)


def test_number_of_images_and_pixel_mean_of_a_real_client():
    observation = trained_pair(digits(9))
    assert infer_image_count(observation).count == 9
    assert infer_pixel_mean(observation) == pytest.approx((0.3,), abs=1e-3)  # border pixels of digits are always black


def test_images_that_nothing_was_subtracted_from():
    assert infer_pixel_mean(trained_pair(digits(9, mean=0.0))) == (0.0,)


def test_ahead_of_batch_norm_differences_tell_one_image_more_and_no_mean():
    """Their biases stand still but for rounding, as the columns of black pixels do, which was taken for a mean of 0."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10)]
    observation = client(nn.Sequential(*layers).train(), digits(9))
    assert infer_image_count(observation) == ImageCount(9, has_spectral_gap=True)
    assert infer_pixel_mean(observation) is None


def test_entries_left_out_tell_no_mean():
    """Black pixels change a weight by less than others do, and were nothing, as if nothing had been subtracted."""
    observation = trained_pair(digits(9))
    initial, delta = observation.initial, observation.delta()
    least = torch.cat([value.abs().flatten() for value in delta.values()]).quantile(0.9)
    final = {name: (initial[name] + value * (value.abs() >= least)).float() for name, value in delta.items()}
    assert infer_pixel_mean(Observation(observation.model, ((initial, final),), (1, 8, 8))) is None


def test_adam_gives_no_clear_count_and_no_mean():
    observation = trained_pair(digits(9), optimizer=torch.optim.Adam, lr=1e-3)
    assert not infer_image_count(observation).has_spectral_gap
    assert infer_pixel_mean(observation) is None


def test_more_digits_than_their_effective_rank_are_a_guess_from_below():
    found = infer_image_count(trained_pair(digits(60)))
    assert not found.has_spectral_gap and found.count < 60


def test_no_constant_pixel_no_mean():
    images = torch.rand((9, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    assert infer_pixel_mean(trained_pair(images)) is None


def test_a_convolutional_network_does_not_tell_the_number():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    state = model.state_dict()
    assert infer_image_count(Observation(model, ((state, state),), (1, 8, 8))) is None


def test_more_images_than_half_of_the_rank_are_counted():
    generator = torch.Generator().manual_seed(0)
    update = torch.randn(200, 50, generator=generator) @ torch.randn(50, 65, generator=generator)
    rounded = update + 1e-5 * torch.randn(200, 65, generator=generator)
    assert Spectrum.of(rounded.double()).count() == 50
    many = Spectrum.of(torch.randn(200, 65, generator=generator, dtype=torch.float64))
    assert many.image_count().has_spectral_gap is False


def test_a_first_layer_that_did_not_move_says_nothing():
    observation = trained_pair(torch.rand(3, 1, 8, 8))
    initial, final = observation.pairs[0]
    final = {name: initial[name] if name.startswith("1.") else value for name, value in final.items()}
    still = Observation(observation.model, ((initial, final),), (1, 8, 8))
    assert infer_image_count(still) == ImageCount(0, has_spectral_gap=False)
    assert infer_pixel_mean(still) is None
