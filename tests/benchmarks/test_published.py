"""The settings of the publications, on images made by hand, and what a line of the table says of draws."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clients.data.arrays import ArraySplit, Dataset
from tests.benchmarks import published
from tests.benchmarks.published import Client, Row


@pytest.fixture(scope="module")
def noise() -> Dataset:
    """Eight images of 3x32x32 in each split."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), np.uint8)
    split = ArraySplit(pixels, np.arange(8))
    return Dataset(split, split, tuple("abcdefgh"))


def draws(*scores):
    return [{"seed": seed, "score": score, "none": int(not score), "seconds": 1.0} for seed, score in enumerate(scores)]


def test_ten_clients_without_an_image_leave_three_in_ten_possible():
    line = published.table_line("row", Row(0.9, lambda data, seed: (0.0, True)), draws(*[0.0] * 10))
    assert line == "| row | 0.9 | 0.000 | 0.000 to 0.308 | no | 10 of 10 | 1.0 |"  # 1 − 0.025^(1/10) = 0.308


def test_a_psnr_has_students_interval_and_what_nobody_published_is_left_empty():
    row = Row(math.nan, lambda data, seed: (0.0, True), decibels=True)
    line = published.table_line("row", row, draws(18.0, 20.0))  # 19 ± 12.706 · √2 / √2
    assert line == "| row |  | 19.00 | 6.29 to 31.71 |  | 0 of 2 | 1.0 |"


def test_a_client_sends_its_gradient(noise):
    client = Client.drawn(noise, 2, 0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 8)).double()
    observation = client.observed(model, client.images)
    F.cross_entropy(model(client.images), torch.tensor(client.labels)).backward()
    torch.testing.assert_close(observation.delta()["1.weight"], -model[1].weight.grad, rtol=0, atol=1e-15)


def test_the_lenet_has_the_parameters_of_its_authors(noise):
    sizes = [parameter.numel() for parameter in published.lenet_of_zhu(0).parameters()]
    assert sum(sizes) == 3 * 300 + 12 + 2 * (12 * 300 + 12) + 7680 + 10
    assert published.geiping("span", noise, 0) == (0.0, True)


def test_pixels_come_back_from_what_the_network_is_fed():
    images = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(published.pixels_of(published.normalized(images)), images)


def test_precode_hides_nothing_of_one_image_from_an_attack_on_the_layers_in_front_of_it(noise):
    score, none = published.precode("span", (), noise, 0)
    assert score > 0.999 and not none


def test_a_code_that_is_standard_normal_costs_nothing():
    precode = published.Precode(4)
    torch.nn.init.zeros_(precode.encoder.weight)
    with torch.no_grad():
        precode.encoder.bias[: published.CODE] = 0
        precode.encoder.bias[published.CODE :] = math.log(math.e - 1)  # softplus gives 1
    assert precode.penalty(torch.randn(3, 4)).item() == pytest.approx(0, abs=1e-6)


def test_the_first_hundred_validation_images_are_there(shared_data):
    with np.load(shared_data / "cifar10" / "cifar10_lossless_subset.npz") as held:
        assert held["idx_test"][:100].tolist() == list(range(100))
