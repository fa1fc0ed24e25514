import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.update.private_set import infer_background
from tests.attacks.conftest import digits, nearest
from tests.attacks.span.conftest import Convolutional, client, run

MEAN = 0.3
LR = 0.3


def attack(observation, known=6, **options):
    return run(observation, Knowledge(num_private=known), **{"rounds": 3, "starts": 60, **options})


def test_images_of_every_batch_are_found_at_their_own_step(minibatches):
    images, _, found = minibatches
    assert found.images.shape == (6, 1, 8, 8) and found.facts["steps"] == 2 and found.facts["used_num_private"] == 6
    assert (nearest(images, found) < 0.1).all()  # two different digits are 2.5 to 4 apart
    assert (found.residual < found.facts["gradient_threshold"]).all() and (found.residual.diff() >= 0).all()
    assert found.pixel_mean == pytest.approx((MEAN,), abs=0.03)


def test_full_batches_are_found_at_the_initial_parameters():
    images = digits(6)
    found = attack(client(Convolutional(), images, batch=6, epochs=20, lr=0.05))
    assert found.facts["steps"] == 1 and (nearest(images, found) < 0.2).all() and len(found.images) == 6


def test_the_same_generator_gives_the_same_bits(minibatches):
    _, observation, found = minibatches
    again = attack(observation)
    assert torch.equal(found.images, again.images) and torch.equal(found.residual, again.residual)


def test_wrong_images_are_rejected():
    """A max-pool network with one hidden layer: from noise, ρ is driven far below that of decoys, on no image."""
    images = digits(12)
    observation = client(Convolutional(pool=F.max_pool2d, hidden=1), images, batch=12, epochs=20, lr=LR)
    found = attack(observation, known=12, rounds=1)
    assert len(found.images) == 0 or (torch.cdist(found.images.flatten(1), images.flatten(1)).min(1).values < 1).all()
    assert "sought from noise" in found.warnings[0]


@pytest.mark.slow
def test_local_adam_gives_nothing():
    found = attack(client(Convolutional(), digits(6), 3, 4, lr=1e-3, optimizer=torch.optim.Adam))
    assert len(found.images) == 0 and "candidates passes both tests: their least ρ is" in found.warnings[0]


@pytest.mark.usefixtures("without_last_layer")
def test_the_number_of_images_is_required_by_name():
    observation = client(Convolutional(), digits(2), 2, 1)
    with pytest.raises(InputError, match="'span' needs num_private"):
        get_attack("span").check(observation, Knowledge())


def test_an_unchanged_checkpoint_is_refused():
    model = Convolutional()
    with pytest.raises(InputError, match="update is zero"):
        attack(Observation(model, ((model.state_dict(), model.state_dict()),), (1, 8, 8)))


def test_background_is_the_most_frequent_value_with_little_below_it():
    images = torch.full((2, 1, 10, 10), -0.4)
    images[:, :, :3] = torch.linspace(-0.4, 0.6, 60).view(2, 1, 3, 10)
    assert infer_background(images) == pytest.approx((0.4,))
    assert infer_background(-images) is None
    assert infer_background(torch.linspace(-0.5, 0.5, 200).view(2, 1, 10, 10)) is None


def test_features_of_few_numbers_are_said_to_tell_little():
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten()]
    # nothing that is known lies between the first two linear layers: features are not tested by themselves
    head = [nn.Linear(12, 128), nn.Hardswish(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 10)]
    found = attack(client(nn.Sequential(*body, *head), digits(4), 2, 3, lr=LR), known=4, rounds=1)
    assert any("12 features stand for 64 pixels" in warning for warning in found.warnings)


def test_one_image_is_enough():
    images = digits(1)
    found = attack(client(Convolutional(), images, 3, 4, lr=LR), known=1, rounds=1, starts=20)
    assert len(found.images) == 1 and float(nearest(images, found)) < 1e-2
