"""Adaptive span attack: what it is told of the defense pays, and without it nothing changes."""

import pytest
import torch

from attacks import Knowledge, Observation
from tests.attacks.conftest import nearest
from tests.attacks.span.conftest import run


@pytest.fixture
def trained(federated):
    images, observation, _ = federated
    return images, observation, observation.delta()


def sent(observation, delta):
    initial = observation.initial
    final = {name: (initial[name] + delta[name]).float() for name in initial}
    return Observation(observation.model, ((initial, final),), observation.input_shape)


def noised(delta, scale):
    generator = torch.Generator().manual_seed(3)
    entries = sum(value.numel() for value in delta.values())
    norm = sum(value.square().sum() for value in delta.values()) ** 0.5
    return {
        name: value + scale * norm / entries**0.5 * torch.randn(value.shape, generator=generator)
        for name, value in delta.items()
    }


def at_random(delta, fraction):
    generator = torch.Generator().manual_seed(3)
    return {name: value * (torch.rand(value.shape, generator=generator) < fraction) for name, value in delta.items()}


def test_noise_of_known_size_does_not_stop_it(trained):
    images, observation, delta = trained
    defended = sent(observation, noised(delta, 0.2))
    assert len(run(defended).images) == 0
    found = run(defended, Knowledge(noise_scale=0.2))
    assert found.num_inferred == 8
    assert (nearest(images, found) < 0.5).all()  # two different digits are 2.5 to 4 apart


def test_half_of_the_entries_are_enough_for_exact_images_and_their_number(trained):
    images, observation, delta = trained
    defended = sent(observation, at_random(delta, 0.5))
    assert len(run(defended).images) == 0
    found = run(defended, Knowledge(kept_fraction=0.52))
    assert found.num_inferred == 8
    assert (nearest(images, found) < 0.1).all()


def test_too_few_entries_are_counted(trained):
    _, observation, delta = trained
    found = run(sent(observation, at_random(delta, 0.05)), Knowledge(num_private=8, kept_fraction=0.06))
    assert len(found.images) == 0 and found.facts["kept"] < found.facts["needed"]
    assert f"{found.facts['kept']:.0f} of the first layer's entries are kept, 8 images need" in found.warnings[0]


def test_quantization_is_undone(trained):
    images, observation, delta = trained
    rounded = {}
    for name, value in delta.items():
        step = (value.max() - value.min()) / (2**6 - 1)
        rounded[name] = value.min() + step * ((value - value.min()) / step).round()
    found = run(sent(observation, rounded), Knowledge(num_private=8, quantization_bits=6))
    assert (nearest(images, found) < 0.1).all()


def test_knowledge_of_a_defense_that_is_not_there_does_no_harm(trained):
    images, observation, _ = trained
    plain = run(observation)
    told = run(observation, Knowledge(kept_fraction=0.1, quantization_bits=4))
    assert torch.equal(plain.images, told.images)
    assert (nearest(images, told) < 1e-2).all()
