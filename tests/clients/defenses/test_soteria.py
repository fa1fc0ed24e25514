import pytest
import torch
from torch import nn

from attacks import InputError
from clients.chain import DefenseChain
from clients.config import TrainingConfig
from clients.defenses.soteria import kept_entries
from clients.training import train
from tests.clients.defenses.parts import config, context, make


def network():
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]]))
    return model


def test_pruned_are_the_entries_that_are_large_for_how_little_the_image_moves_them():
    """r = Wx has ∂r_i/∂x = W_i: the ratios are Σ_b ‖W_i‖ / (|W_i x_b| + 0.1), here
    5/11.1 + 5/4.1 = 1.7, 1/1.1 + 1/0.1 = 10.9 and 2/4.1 + 2/2.1 = 1.4."""
    images = torch.tensor([[1.0, 2.0], [0.0, 1.0]]).view(2, 1, 1, 2)
    model = network()
    for fraction, kept in ((1 / 3, [1, 1, 0]), (2 / 3, [0, 1, 0])):
        assert kept_entries(model, model[2], images, fraction).tolist() == kept


def test_a_step_leaves_the_pruned_columns_of_the_last_layer_alone():
    settings, model, images = config("soteria"), network(), torch.tensor([[1.0, 2.0], [0.0, 1.0]]).view(2, 1, 1, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    chain = DefenseChain.of(settings, 1, 0, model, {})
    training = TrainingConfig(steps=1, learning_rate=0.1)
    train(model, images, torch.tensor([0, 1]), training, torch.Generator(), chain.links)
    body, head = (parameter.detach() - old for parameter, old in zip(model.parameters(), before, strict=True))
    assert body.any() and head[:, 1].all()
    assert not head[:, [0, 2]].any()  # 60 % of three entries


def test_it_needs_a_linear_layer_and_no_other_maker_of_gradients():
    with pytest.raises(InputError, match="no linear layer to defend"):
        make("soteria").check(context(model=nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten())))
    with pytest.raises(InputError, match="soteria and dp_sgd exclude each other"):
        make("soteria").check(context("soteria", {"name": "dp_sgd", "epsilon": 8.0}))
