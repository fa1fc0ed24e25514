import pytest
import torch
from torch import nn

from attacks import Knowledge, Observation, get_attack
from attacks.update.weight_decay import decay_factor, without_decay


def digits(count):
    from sklearn.datasets import load_digits

    return torch.tensor(load_digits().images[:count] / 16 - 0.3, dtype=torch.float32)[:, None]


def mlp(width=256):
    torch.manual_seed(0)
    hidden = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


def layers(factor, images=5, noise=0.0):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    initial = draw(60, 40)
    update = draw(60, images) @ draw(images, 40) + noise * draw(60, 40)
    return initial, factor * initial + update


@pytest.mark.parametrize("factor", [0.9999, 0.99, 0.6])
@pytest.mark.parametrize("turned", [False, True])
def test_the_decay_of_a_made_up_update_is_found(factor, turned):
    initial, final = layers(factor)
    if turned:
        initial, final = initial.T, final.T
    assert decay_factor(initial, final) == pytest.approx(factor, abs=1e-7)


def test_no_decay_is_seen_where_there_is_none():
    assert decay_factor(*layers(1.0)) == 1.0
    assert decay_factor(*layers(1.0, noise=0.3)) == 1.0  # noise is not along θ₀


def test_a_client_with_weight_decay_is_attacked_as_one_without():
    images, model, rate, decay = digits(8), mlp(), 0.05, 1e-2
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    for _ in range(4):
        for i in torch.arange(8).split(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[i]), i % 10).backward()
            optimizer.step()
    observation = Observation(model, ((initial, model.state_dict()),), (1, 8, 8))
    factor = (1 - rate * decay) ** 8
    weights = initial["1.weight"], observation.final["1.weight"]
    assert decay_factor(*weights) == pytest.approx(factor, abs=1e-6)
    undone = without_decay(observation, factor)
    torch.testing.assert_close(undone.delta()["1.weight"], weights[1].double() - factor * weights[0].double())
    found = get_attack("span").run(observation, Knowledge(), torch.Generator().manual_seed(0))
    assert found.facts["decay_factor"] == pytest.approx(factor, abs=1e-6)
    assert "weight decay was undone" in found.warnings[0]
    assert (torch.cdist(images.flatten(1), found.images.flatten(1)).min(1).values < 1e-2).all()
