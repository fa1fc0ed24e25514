import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from attacks import Knowledge, Observation
from attacks.span.feature_space.network import find_feature_network
from attacks.span.feature_space.single_image import photographs, pooled_layers
from attacks.span.maps.inversion import PixelSpace, dead_leaves
from attacks.span.thresholds import FEATURE, SINGLE_IMAGE
from tests.attacks.span.conftest import run

SHAPE = (1, 20, 20)


def network(seed=0):
    """400 pixels; 512 numbers behind the first pooling; 216 features."""
    torch.manual_seed(seed)
    body = (nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 24, 3), nn.ReLU(), nn.MaxPool2d(2))
    head = (nn.Linear(216, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return nn.Sequential(*body, nn.Flatten(), *head)


def image(seed=0):
    coarse = torch.randn(1, 1, 5, 5, generator=torch.Generator().manual_seed(seed))
    return (0.25 * interpolate(coarse, SHAPE[1:], mode="bilinear")).clamp(-0.5, 0.5)


def returned(model, private, steps=1, rate=0.01):
    sent = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(private), torch.zeros(len(private), dtype=torch.long)).backward()
        optimizer.step()
    return Observation(model, pairs=((sent, model.state_dict()),), input_shape=SHAPE)


def layers_of(model):
    read = find_feature_network(model, SHAPE)
    return None if read is None else pooled_layers(read, dict(model.state_dict()), SHAPE)


@pytest.mark.parametrize("padding, stride", [(0, 1), (2, 1), (1, 2)])
def test_a_layer_gives_what_the_network_and_its_gradients_give(padding, stride):
    torch.manual_seed(0)
    convolution = nn.Conv2d(1, 6, 5, stride, padding)
    model = nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(8), nn.ReLU())
    private = image().requires_grad_()
    model(private.detach())
    (layer,) = layers_of(model)
    features = model[:4](private)
    signals = torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    update, back = torch.autograd.grad((features * signals).sum(), (convolution.weight, private))
    inputs, shaped = private.detach().double().flatten(), signals.double().view(6, -1)
    _, pooled, _ = layer.forward(inputs[None], shaped)
    torch.testing.assert_close(pooled.clamp_min(0).flatten(1).float(), features.detach())
    _, _, found = layer.forward(inputs[None], shaped * (pooled[0] > 0))
    torch.testing.assert_close(found[0].float(), update.flatten(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.back(inputs, shaped).float(), back.flatten(), rtol=1e-4, atol=1e-5)


def test_its_rows_are_linear_in_the_input_once_winners_are_known():
    layer = layers_of(network())[0]
    inputs, signals = image().double().flatten(), torch.ones(8, 64, dtype=torch.float64)
    winner, pooled, update = layer.forward(inputs[None], signals)
    to_pooled, to_update = layer.rows(nn.functional.one_hot(winner[0], 4).double(), signals)
    torch.testing.assert_close(to_pooled @ inputs + layer.bias[:, None], pooled[0])
    torch.testing.assert_close(to_update @ inputs, update[0])


def test_the_update_follows_the_winners_on_average():
    """The mean of the update moves with the mean of the input because patches do, and because winners change."""
    layer, generator = layers_of(network())[0], torch.Generator().manual_seed(0)
    inputs = image().double().flatten() + 0.1 * torch.randn(3000, 400, generator=generator).double()
    way, signals = 0.03 * image(1).double().flatten(), torch.ones(8, 64, dtype=torch.float64)
    moved = layer.forward(inputs + way, signals)[2].mean(0) - layer.forward(inputs - way, signals)[2].mean(0)
    winner = layer.forward(inputs, signals)[0]
    known = layer.rows(nn.functional.one_hot(winner, 4).double().mean(0), signals)[1] @ (2 * way)
    turned = layer.turns(inputs, winner, signals) @ (2 * way)
    assert (moved - known - turned).norm() < (moved - known).norm() / 3


def test_learned_edges_and_colours_bring_an_image_nearer():
    """An image of a few grey discs, of whose numbers half as many random combinations are known as there are."""
    generator = torch.Generator().manual_seed(0)
    grey = dead_leaves(1, (1, 16, 16), generator).double().expand(1, 3, 16, 16).flatten()
    seen = torch.randn(384, 768, generator=generator).double()
    prior = photographs(PixelSpace((3, 16, 16), None), 1.25, 1, generator)
    missed = []
    for _ in range(4):
        mean = torch.linalg.solve(1e-6 * prior.precision + seen.T @ seen, seen.T @ (seen @ grey))
        missed.append((mean - grey).norm())
        prior = prior.learned(mean[None])
    assert missed[-1] < missed[0] / 3


def test_other_bodies_are_left_to_other_ways():
    features = (nn.Flatten(), nn.Linear(8 * 8 * 8, 16), nn.ReLU(), nn.Linear(16, 10))
    for other in (nn.Tanh(), nn.AvgPool2d(1), nn.Sequential(nn.ReLU(), nn.GroupNorm(2, 8))):
        model = nn.Sequential(nn.Conv2d(1, 8, 5), other, nn.MaxPool2d(2), *features).eval()
        assert layers_of(model) is None


def test_the_image_of_a_client_of_one_comes_back(monkeypatch):
    monkeypatch.setattr(SINGLE_IMAGE, "map_images", 1500)
    monkeypatch.setattr(FEATURE, "few_features", 0.6)
    private = image()
    found = run(returned(network(), private), Knowledge(num_private=1))
    assert len(found.images) == 1 and found.facts["decoy_error"] < 0.7
    assert -10 * (found.images - private).square().mean().log10() > 25


def test_an_update_of_several_steps_gives_no_image(monkeypatch):
    """No step of the client is the only one, so no maps leave as little of it as rounding does."""
    monkeypatch.setattr(SINGLE_IMAGE, "map_images", 1500)
    monkeypatch.setattr(FEATURE, "few_features", 0.6)
    monkeypatch.setattr(SINGLE_IMAGE, "map_steps", 10)
    monkeypatch.setattr(FEATURE, "pilot_error", 0.0)
    found = run(returned(network(), image(), steps=3, rate=0.1), Knowledge(num_private=1))
    assert len(found.images) == 0
