"""Candidates from a file on the scale of the network's inputs, and a warning where they are on another."""

import pytest
import torch

from attacks import Knowledge, Observation
from simulator.evaluation.candidate_images import scale_warning, to_input_space, untold_warning
from tests.simulator.audit.recorded import NORMALIZATION, SHAPE, digits, network, trained


@pytest.fixture(scope="module")
def observation():
    model = network()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    return Observation(model, ((start, trained(model, start, 0)),), SHAPE)


def test_pixels_become_inputs_by_mean_and_deviation(observation):
    pixels = torch.tensor([0.3, 0.7]).repeat(32).view(1, *SHAPE)
    told = Knowledge(pixel_mean=(0.3,), pixel_std=(0.4,))
    assert to_input_space(pixels, observation, told).flatten()[:2].tolist() == pytest.approx([0.0, 1.0])
    guessed = to_input_space(pixels, observation, Knowledge(pixel_std=(0.4,)))  # the mean is read off black pixels
    assert guessed.flatten()[:2].tolist() == pytest.approx([0.0, 1.0], abs=1e-3)


def test_images_on_another_scale_than_the_update_are_noticed(observation):
    pixels, _ = digits(1)
    assert scale_warning(NORMALIZATION.inputs(pixels), observation) is None
    assert "black is -0.75 in the update and 0 in the images" in scale_warning(pixels, observation)
    assert "black is -0.75 in the update and -0.3 in the images" in scale_warning(pixels - 0.3, observation)


def test_where_the_update_does_not_tell_its_black_only_sizes_are_noticed(observation):
    start, end = observation.pairs[0]
    moved = {name: value + 0.01 * torch.randn_like(value) for name, value in end.items()}
    blurred = Observation(observation.model, ((start, moved),), SHAPE)
    assert scale_warning(digits(1)[0], blurred) is None
    assert "the images reach up to 255" in scale_warning(255 * digits(1)[0], blurred)


def test_pixels_that_may_be_taken_for_inputs_are_noticed(observation):
    """Of pixels that training normalizes `member` would find none, and say so without a word on why."""
    start, end = observation.pairs[0]
    moved = {name: value + 0.01 * torch.randn_like(value) for name, value in end.items()}
    blurred, pixels = Observation(observation.model, ((start, moved),), SHAPE), digits(1)[0]
    assert "give --mean and --std" in untold_warning(pixels, blurred)
    assert untold_warning(pixels - 0.3, blurred) is None
    assert untold_warning(2 * pixels, blurred) is None
    assert untold_warning(pixels, observation) is None  # its black is known: `scale_warning` compares it
