import pytest
import torch
from torch import nn

from attacks import InputError, Observation
from attacks.networks.front_layers import read_front_layers
from attacks.span.evidence.layers import FirstLayers, at_rest, rounds_with_images
from attacks.update.spectrum import Spectrum
from tests.attacks.conftest import digits
from tests.attacks.span.conftest import SHAPE, history, mlp

CPU = torch.device("cpu")


def test_rounds_are_stacked_and_those_without_images_left_out():
    model = mlp(width=64)
    observation = history(model, [digits(4)] * 2)
    network = read_front_layers(model, SHAPE)
    still = (observation.final, {**observation.final, "5.bias": observation.final["5.bias"] + 1})
    pairs = (observation.pairs[0], still, observation.pairs[1])
    assert rounds_with_images(Observation(model, pairs, SHAPE), network) == (0, 2)
    layers = FirstLayers.of(observation, network, CPU)
    assert (layers.rounds, layers.width, layers.most_images()) == (2, 64, 4)
    for change, (initial, final) in zip(layers.by_round(layers.change), observation.pairs, strict=True):
        torch.testing.assert_close(change[:, :-1], final["1.weight"].double() - initial["1.weight"].double())
        torch.testing.assert_close(change[:, -1], final["1.bias"].double() - initial["1.bias"].double())
    with pytest.raises(InputError, match="first two layers is zero"):
        rounds_with_images(Observation(model, (still,), SHAPE), network)
    with pytest.raises(InputError, match="the update is zero"):
        rounds_with_images(Observation(model, ((observation.final, observation.final),), SHAPE), network)


def test_weight_decay_is_undone_and_said():
    model = mlp()
    observation = history(model, [digits(8)])
    shrunk = {name: value - 0.02 * observation.initial[name] for name, value in observation.final.items()}
    network = read_front_layers(model, SHAPE)
    layers = FirstLayers.of(Observation(model, ((observation.initial, shrunk),), SHAPE), network, CPU)
    plain = FirstLayers.of(observation, network, CPU)
    assert (
        layers.facts["decay_factor"] == pytest.approx(0.98, abs=1e-5)
        and "weight decay was undone" in layers.warnings[0]
    )
    assert float((layers.change - plain.change).norm() / plain.change.norm()) < 1e-2 and plain.facts == {}


def test_batchnorm_is_folded_into_what_the_activation_is_fed_and_not_into_the_update():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), norm, nn.ReLU(), nn.Linear(32, 16), nn.ReLU()).double()
    model = model.append(nn.Linear(16, 10).double()).eval()
    nn.init.uniform_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.1, 2)
    images = digits(4).double()
    points = torch.nn.functional.pad(images.flatten(1), (0, 1), value=1.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fed = [model[:3](images)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    fed.append(model[:3](images))
    observation = Observation(model, ((before, model.state_dict()),), SHAPE)
    layers = FirstLayers.of(observation, read_front_layers(model, SHAPE), CPU)
    for own, expected in zip(layers.fed, fed, strict=True):
        torch.testing.assert_close(points @ own.T, expected)
    torch.testing.assert_close(layers.change[:, :-1], observation.delta()["1.weight"])


def test_features_are_at_rest_where_rounding_follows_behind_the_images():
    vectors = torch.eye(4).double()
    still = Spectrum(torch.tensor([1.0, 1e-2, 1e-6, 1e-7]).double(), vectors, 4, 4)
    moved = Spectrum(torch.tensor([1.0, 1e-2, 1e-3, 1e-7]).double(), vectors, 4, 4)
    assert at_rest([still], 2)
    assert not at_rest([still, moved], 2)
    assert not at_rest([still], 4)
