"""Images whose signals are parallel: a narrow second layer answers them with the same units."""

import pytest
import torch
from torch import nn

from attacks import Knowledge, Observation, get_attack, torch_generator
from tests.attacks.conftest import digits

IMAGES, NARROW = 6, 12


def network():
    layers = nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, NARROW), nn.ReLU(), nn.Linear(NARROW, 2)
    return nn.Sequential(*layers)


def one_step(seed):
    """(images, what a server sees of one step on them, how many signals the second layer shows)."""
    generator = torch.Generator().manual_seed(seed)
    images = digits(200)[torch.randperm(200, generator=generator)[:IMAGES]]
    labels = torch.randint(2, (IMAGES,), generator=generator)
    torch.manual_seed(seed)
    model = network()
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    nn.functional.cross_entropy(model(images), labels).backward()
    with torch.no_grad():
        for value in model.parameters():
            value -= 0.05 * value.grad
    signals = torch.linalg.matrix_rank(model[3].weight.grad, rtol=1e-5)
    returned = {name: value.clone() for name, value in model.state_dict().items()}
    return images, Observation(network(), ((sent, returned),), (1, 8, 8)), int(signals)


@pytest.mark.parametrize("seed", range(7300, 7316))
def test_no_mean_of_images_with_parallel_signals_is_returned(seed):
    images, observation, signals = one_step(seed)
    found = get_attack("span").run(observation, Knowledge(), torch_generator(seed, "attack")).images
    distances = torch.cdist(found.flatten(1), images.flatten(1)).amin(1)
    assert (distances < 0.1).all()
    assert len(found) <= signals
    if signals == IMAGES:
        assert len(found) == IMAGES
