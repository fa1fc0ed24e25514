import pytest
import torch

from attacks import Knowledge, get_attack
from attacks.update.spectrum import decay_factor, without_decay
from tests.attacks.conftest import client, digits, generator, minibatches, mlp, nearest


def layers(factor, images=5, noise=0.0):
    draws = generator()

    def draw(*shape):
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

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
    images, rate, decay = digits(8), 0.05, 1e-2
    observation = client(mlp(256), images, minibatches(8, 4, epochs=4), lr=rate, weight_decay=decay)
    factor = (1 - rate * decay) ** 8
    weights = observation.initial["1.weight"], observation.final["1.weight"]
    assert decay_factor(*weights) == pytest.approx(factor, abs=1e-6)
    undone = without_decay(*weights, factor) - weights[0].double()
    torch.testing.assert_close(undone, weights[1].double() - factor * weights[0].double())
    found = get_attack("span").run(observation, Knowledge(), generator())
    assert found.facts["decay_factor"] == pytest.approx(factor, abs=1e-6)
    assert "weight decay was undone" in found.warnings[0]
    assert (nearest(images, found) < 1e-2).all()
