"""What the tests of the span attack share: networks, a client, and the attack on what it returns."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import Knowledge, Observation, get_attack
from attacks.networks.mlp import ACTIVATIONS
from attacks.span.search.problems import SpanTest
from attacks.span.sparse_duals import DualSpace
from attacks.update.spectrum import Spectrum
from tests.attacks.conftest import digits

SHAPE = (1, 8, 8)


@pytest.fixture
def without_last_layer(monkeypatch):
    """As where a client takes several steps, or has more images than its classes tell apart."""
    monkeypatch.setattr("attacks.span.attack.last_layer_of", lambda observation, others: None)


def mlp(width=256, activation=nn.ReLU):
    torch.manual_seed(0)
    hidden = [nn.Linear(64, width), activation(), nn.Linear(width, width), activation()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


class Convolutional(nn.Module):
    """Layers in an order of their own, activations and pooling as functions."""

    def __init__(self, width=128, activation=F.relu, pool=F.avg_pool2d, hidden=2):
        super().__init__()
        torch.manual_seed(0)
        self.activation, self.pool = activation, pool
        self.out = nn.Linear(96 if hidden == 2 else width, 10)
        self.second = nn.Linear(width, 96) if hidden == 2 else None
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.first = nn.Linear(512, width)
        self.deep = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x):
        x = self.pool(self.activation(self.conv(x)), 2)
        x = self.activation(self.first(self.activation(self.deep(x)).flatten(1)))
        return self.out(x if self.second is None else self.activation(self.second(x)))


def with_frozen_body(activation=nn.ReLU, head=(96, 96)):
    """A random body with 256 features of 64 pixels, frozen, and a head."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, padding=1), nn.LeakyReLU(0.3), nn.Flatten()).requires_grad_(False)
    layers: list[nn.Module] = []
    for into, out in zip((256, *head), head, strict=False):
        layers += [nn.Linear(into, out), activation()]
    return nn.Sequential(body, nn.Sequential(*layers, nn.Linear(head[-1] if head else 256, 10)))


def client(model, images, batch=4, epochs=4, lr=0.05, optimizer=torch.optim.SGD):
    """A FedAvg client: cross-entropy, the same batches in every epoch."""
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    step = optimizer([parameter for parameter in model.parameters() if parameter.requires_grad], lr=lr)
    labels = torch.arange(len(images)) % 10
    for _ in range(epochs):
        for i in torch.arange(len(images)).split(batch):
            step.zero_grad()
            F.cross_entropy(model(images[i]), labels[i]).backward()
            step.step()
    final = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Observation(model, ((initial, final),), SHAPE)


def history(model, private_sets, **options):
    """The rounds of clients that go on from one another's parameters."""
    rounds = [client(model, images, **options) for images in private_sets]
    return Observation(model, tuple(one.pairs[0] for one in rounds), SHAPE)


def run(observation, knowledge=Knowledge(), **options):
    return get_attack("span", **options).run(observation, knowledge, torch.Generator().manual_seed(0))


def first_two(observation, count=8):
    """The second layer's test and the first layer's duals of an observation of `mlp`."""
    before, after = (
        [torch.cat([state[f"{i}.weight"], state[f"{i}.bias"][:, None]], 1).double() for i in (1, 3)]
        for state in observation.pairs[0]
    )
    first, second = Spectrum.of(after[0] - before[0]), Spectrum.of(after[1] - before[1])
    test = SpanTest(before[0].float(), second.vectors[None, : 4 * count].float(), ACTIVATIONS["relu"])
    return test, DualSpace.of(before[0], after[0], first, count)


@pytest.fixture(scope="session")
def federated():
    """Eight digits, what a client on them returned, and the attack on that."""
    images = digits(8)
    observation = client(mlp(), images)
    return images, observation, run(observation)


@pytest.fixture(scope="session")
def minibatches():
    """Six digits in two batches on a convolutional network, and the attack on that."""
    images = digits(6)
    observation = client(Convolutional(), images, batch=3, epochs=4, lr=0.3)
    return images, observation, run(observation, Knowledge(num_private=6), rounds=3, starts=60)
