"""Whoever is told more, and truly, recovers no fewer images and returns none that is nobody's: over all variants."""

import pytest
import torch
import torch.nn.functional as F

from attacks import Knowledge, Observation
from tests.attacks.conftest import MEAN, digits
from tests.attacks.span.conftest import SHAPE, Convolutional, client, mlp, run, with_frozen_body
from tests.attacks.span.maps.networks import SHAPE as MAP_SHAPE
from tests.attacks.span.maps.networks import calibrated, plain, trained

WITHIN = 0.8  # L2 of 20 dB in 64 pixels
TOLD = {"pixel_mean": (MEAN,), "pixel_range": (0.0, 1.0), "learning_rate": 0.05, "optimizer": "sgd", "momentum": 0.0}


def mixed(images):
    """A client that mixes the images of every batch."""
    model, weights = mlp(), torch.Generator().manual_seed(0)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer, labels = torch.optim.SGD(model.parameters(), lr=0.05), torch.arange(len(images)) % 10
    for _ in range(8):
        share, order = float(torch.rand((), generator=weights)), torch.randperm(len(images), generator=weights)
        output = model(share * images + (1 - share) * images[order])
        optimizer.zero_grad()
        loss = share * F.cross_entropy(output, labels) + (1 - share) * F.cross_entropy(output, labels[order])
        loss.backward()
        optimizer.step()
    return Observation(model, ((initial, {k: v.detach().clone() for k, v in model.state_dict().items()}),), SHAPE)


def crowded(count):
    """Images for a third of the width and more."""
    images = digits(count)
    return images, client(mlp(width=64), images, batch=8), {}


def maps():
    images = digits(2).view(2, *MAP_SHAPE)
    model = calibrated(plain(), digits(60).view(60, *MAP_SHAPE))
    return images, Observation(model, (trained(model, images, torch.arange(2)),), MAP_SHAPE), {}


CASES = {
    "pixels": lambda: (digits(8), client(mlp(), digits(8)), {}),
    "crowded, 0.3": lambda: crowded(19),
    "crowded, 0.4": lambda: crowded(26),
    "tanh": lambda: (digits(8), client(mlp(activation=torch.nn.Tanh), digits(8)), {}),
    "mixup": lambda: (digits(8), mixed(digits(8)), {}),
    "features": lambda: (
        digits(6),
        client(Convolutional(), digits(6), batch=3, epochs=4, lr=0.3),
        {"rounds": 3, "starts": 60},
    ),
    "frozen body": lambda: (digits(5), client(with_frozen_body(), digits(5), batch=5, epochs=10), {}),
    "maps": maps,
}


def counted(images, found):
    """(how many images came back, how many returned ones are nobody's)"""
    if not len(found.images):
        return 0, 0
    distance = torch.cdist(images.flatten(1), found.images.flatten(1))
    return int((distance.amin(1) < WITHIN).sum()), int((distance.amin(0) > WITHIN).sum())


LONG = ("crowded, 0.3", "crowded, 0.4", "mixup", "features", "maps")  # 3 to 24 seconds each


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in CASES])
def test_more_knowledge_loses_no_image_and_adds_no_wrong_one(name):
    images, observation, options = CASES[name]()
    number = {"num_private": len(images)}
    least = number if name == "features" else {}  # nothing shows it there
    counts = [
        counted(images, run(observation, Knowledge(**told), **options))
        for told in (least, least | {"pixel_mean": (MEAN,)}, TOLD | number)
    ]
    recovered, strays = zip(*counts, strict=True)
    assert list(recovered) == sorted(recovered), counts
    assert strays[-1] <= strays[1] <= strays[0], counts
    if name not in ("features", "frozen body", "maps"):  # there pixels are as good as an inversion tells
        assert strays == (0, 0, 0), counts
