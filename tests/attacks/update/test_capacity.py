"""How many images the ranks of an update admit, by hand."""

import pytest
import torch
from torch import nn

from attacks import Observation
from attacks.update.private_set import image_capacity
from tests.attacks.user_networks import Quickstart


class Adapted(nn.Module):
    """A network on eight tokens of six numbers, of which a low-rank adapter of rank `rank` is trained."""

    def __init__(self, rank=4):
        super().__init__()
        self.base, self.down, self.up = (
            nn.Linear(6, 32),
            nn.Linear(6, rank, bias=False),
            nn.Linear(rank, 32, bias=False),
        )
        self.base.requires_grad_(False)

    def forward(self, images):
        tokens = images.reshape(len(images), 8, 6)
        return (self.base(tokens) + self.up(self.down(tokens))).mean(1)


class Patches(nn.Module):
    """A network on sixteen patches of 2x2 pixels with learned positions."""

    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Conv2d(3, 32, 2, 2), nn.Parameter(torch.zeros(1, 16, 32))
        self.head = nn.Linear(32, 2)

    def forward(self, images):
        tokens = self.embedding(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(tokens.tanh().mean(1))


def grouped():
    """Two groups of 16 filters on 2 channels: each has rank 16 at most and is used at 9 positions."""
    return nn.Sequential(nn.Conv2d(4, 32, 3, groups=2), nn.Flatten(), nn.Linear(288, 1))


@pytest.mark.parametrize(
    ("model", "shape", "most"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10)), (1, 8, 8), 40),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 10)), (1, 8, 8), 64),
        (Quickstart(), (3, 32, 32), 120),  # of its linear layer; the convolutions are used at 784 and 100 positions
        (grouped(), (4, 5, 5), 1),  # 16 / 9 of the convolution, one of the layer with one output
        (Adapted(4), (1, 6, 8), 0),  # a rank of 4 for eight tokens
        (Adapted(6), (1, 6, 8), 0),
    ],
)
def test_the_layer_with_most_room_says_how_many(model, shape, most):
    state = model.state_dict()
    assert image_capacity(Observation(model, ((state, state),), shape)) == most


def test_learned_positions_show_one_image_though_the_embedding_has_too_low_a_rank_for_its_patches():
    """Sixteen patches of 12 pixels: no image fits the rank, and yet span returns that of a client of one."""
    model = Patches().requires_grad_(False)
    model.embedding.requires_grad_(True)
    state = model.state_dict()
    assert image_capacity(Observation(model, ((state, state),), (3, 8, 8))) == 0
    model.positions.requires_grad_(True)
    assert image_capacity(Observation(model, ((state, state),), (3, 8, 8))) == 1


def test_more_images_than_the_width_have_no_room_and_frozen_layers_none_at_all():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 50), nn.ReLU(), nn.Linear(50, 3))
    model[1].requires_grad_(False)
    state = model.state_dict()
    assert image_capacity(Observation(model, ((state, state),), (1, 6, 6))) == 3


def test_the_rank_of_an_update_of_many_steps_stays_within_it():
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 4)), torch.rand(60, 1, 8, 8)
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.arange(60).split(5):
        steps.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), batch % 4).backward()
        steps.step()
    observation = Observation(model, ((sent, model.state_dict()),), (1, 8, 8))
    assert torch.linalg.matrix_rank(observation.delta()["1.weight"]) <= image_capacity(observation) == 12
