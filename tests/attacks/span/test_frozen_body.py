import pytest
import torch
from torch import nn

from attacks import InputError, Knowledge, Observation, get_attack
from attacks.span.feature_space import find_feature_network, first_input
from attacks.span.frozen_body import find_head

SHAPE = (1, 8, 8)
COUNT = 5


def digits():
    from sklearn.datasets import load_digits

    return torch.tensor(load_digits().images[:COUNT] / 16, dtype=torch.float32)[:, None] - 0.3


def network(activation=nn.ReLU, head=(96, 96)):
    """A random body with 256 features of 64 pixels, frozen, and a head."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, padding=1), nn.LeakyReLU(0.3), nn.Flatten()).requires_grad_(False)
    layers: list[nn.Module] = []
    for into, out in zip((256, *head), head, strict=False):
        layers += [nn.Linear(into, out), activation()]
    return nn.Sequential(body, nn.Sequential(*layers, nn.Linear(head[-1] if head else 256, 10)))


def client(model, steps=10):
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, images = torch.optim.SGD(trained, lr=0.05), digits()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.arange(COUNT)).backward()
        optimizer.step()
    return Observation(model, ((initial, model.state_dict()),), SHAPE)


def test_features_of_a_frozen_body_are_exact_and_so_are_images_with_fewer_pixels():
    observation, images = client(network()), digits()
    found = get_attack("span").run(observation, Knowledge(pixel_mean=(0.3,)), torch.Generator().manual_seed(0))
    assert found.num_inferred == COUNT and found.facts["certified"] == COUNT
    initial = observation.initial
    features, own = (first_input(observation.model, "1.0", initial, x) for x in (found.images, images))
    missed = torch.cdist(own, features).min(1).values / own.norm(dim=1)
    assert float(missed.max()) < 0.02
    assert float(torch.cdist(images.flatten(1), found.images.flatten(1)).min(1).values.max()) < 0.5


def head_of(observation):
    return find_head(observation, find_feature_network(observation.model, SHAPE))


def test_a_head_computes_what_the_network_does():
    observation = client(network(), steps=1)
    head = head_of(observation)
    features = first_input(observation.model, "1.0", observation.final, digits())
    outputs = torch.func.functional_call(head.observation.model, head.observation.final, (features,))
    expected = torch.func.functional_call(observation.model, observation.final, (digits(),))
    assert torch.allclose(outputs, expected, atol=1e-6) and head.observation.input_shape == (256, 1, 1)
    assert len(head.observation.trainable) == 6


def test_only_a_head_of_linear_layers_and_relu_behind_a_frozen_body_counts():
    assert head_of(client(network(nn.Tanh), steps=1)) is None
    moving = network()
    moving[0].requires_grad_(True)
    assert head_of(client(moving, steps=1)) is None


def test_a_linear_head_is_refused_with_what_it_lacks():
    with pytest.raises(InputError, match="neither"):
        get_attack("span").run(
            client(network(head=()), steps=1), Knowledge(num_private=COUNT), torch.Generator().manual_seed(0)
        )
