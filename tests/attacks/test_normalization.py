"""Mean and deviation of inputs: from pixels to inputs and back, in what is told, found and inferred."""

import pytest
import torch

from attacks import InputError, Knowledge, Reconstruction
from attacks.interface.normalization import Normalization
from attacks.update.private_set import are_raw_pixels


def test_inputs_are_pixels_less_the_mean_over_the_deviation_by_channel():
    pixels = torch.tensor([0.5, 1.0]).view(1, 2, 1, 1)
    two = Normalization((0.5, 0.6), (0.25, 0.2))
    assert two.inputs(pixels).flatten().tolist() == pytest.approx([0.0, 2.0])
    assert two.pixels(two.inputs(pixels)).flatten().tolist() == pytest.approx([0.5, 1.0])
    assert torch.equal(Normalization((0.5, 0.6)).inputs(pixels), pixels - torch.tensor([0.5, 0.6]).view(1, 2, 1, 1))


def test_the_bounds_of_inputs_are_those_of_normalized_pixels():
    low, high = Knowledge(pixel_mean=(0.3,), pixel_std=(0.4,)).input_bounds(torch.zeros(()))
    assert (low.item(), high.item()) == pytest.approx((-0.75, 1.75)) and low.shape == (1, 1, 1, 1)


def test_a_reconstruction_gives_pixels():
    inputs = torch.tensor([[-0.75, 0.0], [1.75, 2.0]]).view(2, 1, 1, 2)
    found = Reconstruction(inputs, torch.zeros(2), pixel_mean=(0.3,), pixel_std=(0.4,))
    assert found.pixels().flatten().tolist() == pytest.approx([0.0, 0.3, 1.0, 1.0])
    assert found.pixels(clamped=False).flatten()[3].item() == pytest.approx(1.1)


def test_a_mean_that_is_not_known_is_not_added_and_nothing_clamped():
    inputs = torch.tensor([[-0.75, 0.0], [1.75, 2.0]]).view(2, 1, 1, 2)
    found = Reconstruction(inputs, torch.zeros(2), held=inputs)
    assert torch.equal(found.pixels(), inputs) and torch.equal(found.held_pixels(), inputs)
    divided = Reconstruction(inputs, torch.zeros(2), pixel_std=(0.4,)).pixels()
    assert divided.flatten().tolist() == pytest.approx([-0.3, 0.0, 0.7, 0.8])
    colours = Reconstruction(torch.rand(2, 3, 4, 4), torch.zeros(2))
    assert torch.equal(colours.pixels(), colours.images)


@pytest.mark.parametrize(
    ("low", "high", "std", "raw"),
    [(0, 1, None, True), (-1e-3, 1 + 1e-3, None, True), (-0.01, 0.9, None, False), (0, 2.5, (0.4,), True)],
)
def test_images_in_the_range_of_pixels_are_pixels(low, high, std, raw):
    assert are_raw_pixels(torch.tensor([low, high]).view(2, 1, 1, 1), std) == raw


def test_no_image_tells_no_mean():
    assert not are_raw_pixels(torch.zeros(0, 3, 4, 4))


def test_a_deviation_that_is_none_is_refused():
    with pytest.raises(InputError, match=r"pixel_std is .* positive and finite"):
        Knowledge(pixel_std=(0.0,))
