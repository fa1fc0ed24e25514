import math

import pytest
import torch

from attacks.networks.front_layers import read_front_layers
from clients.config import ModelConfig
from clients.models import build_model

SHAPE = (1, 28, 28)


def build(outputs=10, shape=SHAPE, seed=0, **options):
    return build_model(ModelConfig(**options), shape, outputs, seed)


def test_mlp_layers_and_truncated_lecun_weights():
    model = build(width=1000, depth=2)
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert shapes == [(1000, 784), (1000,), (1000, 1000), (1000,), (10, 1000), (10,)]
    first = model[1].weight
    assert float(first.detach().std()) == pytest.approx(1 / 28, rel=0.01)
    assert float(first.detach().abs().max()) <= 2 / 28 / 0.8796 + 1e-6
    assert not model[1].bias.any()


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "softplus", "gelu"])
def test_attacks_read_the_layers_of_an_mlp(activation):
    assert read_front_layers(build(activation=activation, dropout=0.1), SHAPE).activation == activation


def test_plain_lecun_reaches_beyond_two_deviations():
    assert float(build(width=500, initialization="lecun")[1].weight.detach().abs().max()) > 3 / 28


def test_same_seed_same_weights():
    assert torch.equal(build(seed=3)[1].weight, build(seed=3)[1].weight)
    assert not torch.equal(build(seed=3)[1].weight, build(seed=4)[1].weight)


def test_ntk_parameterization_divides_by_the_root_of_fan_in():
    model = build(width=400, parameterization="ntk", depth=1)
    assert float(model[1].weight.detach().std()) == pytest.approx(1.0, rel=0.01)
    x = torch.randn(3, *SHAPE)
    hidden = torch.relu(x.flatten(1) @ model[1].weight.T / 28)
    assert torch.allclose(model(x), hidden @ model[3].weight.T / math.sqrt(400), atol=1e-5)


def test_output_activation_and_no_bias():
    model = build(width=8, bias=False, output_activation="softmax")
    assert torch.allclose(model(torch.randn(2, *SHAPE)).sum(1), torch.ones(2))
    assert all("bias" not in name for name, _ in model.named_parameters())


def test_a_bottleneck_is_the_middle_hidden_layer():
    shapes = [tuple(p.shape) for p in build(width=50, depth=3, bottleneck=4, bias=False).parameters()]
    assert shapes == [(50, 784), (4, 50), (50, 4), (10, 50)]


def test_maxout_takes_the_larger_of_two_units_by_hand():
    model = build(width=2, depth=1, activation="maxout", bias=False, shape=(1, 1, 1), outputs=1)
    assert [tuple(p.shape) for p in model.parameters()] == [(4, 1), (1, 2)]
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0], [-2.0], [3.0], [5.0]]))
        model[3].weight.copy_(torch.tensor([[1.0, 10.0]]))
    assert model(torch.ones(1, 1, 1, 1)).item() == 1 + 50
    assert model(-torch.ones(1, 1, 1, 1)).item() == 2 - 30


def test_hidden_softmax_has_mean_one_at_any_width():
    for width in (8, 800):
        model = build(width=width, depth=1, activation="softmax")
        assert torch.allclose(model[2](model[1](torch.randn(3, 784))).mean(1), torch.ones(3), atol=1e-5)


def test_dropout_follows_every_hidden_activation_and_changes_no_weight():
    plain, dropped = build(width=50), build(width=50, dropout=0.5)
    kinds = [type(module).__name__ for module in dropped]
    assert kinds == ["Flatten", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    images = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain(images), dropped(images))  # in evaluation mode
    assert not torch.equal(plain(images), dropped.train()(images))
