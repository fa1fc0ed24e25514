"""Images whose signals are parallel: a narrow second layer answers them with the same units."""

import pytest
import torch
from torch import nn

from attacks import Knowledge, Observation, get_attack, torch_generator
from tests.attacks.conftest import client, digits, minibatches, mlp, nearest

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
    result = get_attack("span").run(observation, Knowledge(), torch_generator(seed, "attack"))
    found = result.images
    distances = torch.cdist(found.flatten(1), images.flatten(1)).amin(1)
    assert (distances < 0.1).all()
    assert len(found) <= signals
    if signals == IMAGES:
        assert len(found) == IMAGES
    elif len(found):
        assert f"{IMAGES - len(found)} of {IMAGES} candidates are held: " in result.warnings[0]


@pytest.mark.parametrize("seed", range(7316, 7320))
def test_images_of_many_batches_at_a_small_rate_all_come_back(seed):
    """Features hardly move, so that the second layer shows as many directions as images. The duals tell that no two
    images share a signal, and images of later batches, which fit the parameters of then, come back."""
    images = digits(200)[torch.randperm(200, generator=torch.Generator().manual_seed(seed))[:8]]
    observation = client(mlp(256, seed=seed), images, minibatches(8, 2, 1), lr=0.01)
    found = get_attack("span").run(observation, Knowledge(), torch_generator(seed, "attack"))
    assert len(found.images) == 8 and not found.warnings
    assert (nearest(images, found) < 1e-2).all()
