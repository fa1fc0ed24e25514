import pytest
import torch

from attacks.span.feature_space.inversion import Momentum, PixelTest, fit_factor, moved, next_state
from attacks.span.feature_space.network import find_feature_network, step_of
from tests.attacks.conftest import client, digits
from tests.attacks.span.conftest import Convolutional
from tests.attacks.span.feature_space.test_sgd_steps import factors

LR, VALUE = 0.1, 0.5


def test_weights_of_steps_by_hand():
    half = Momentum(0.5, 3)
    assert [half.weight(t) for t in range(4)] == [1.75, 1.5, 1.0, 1.0]  # 1 + ½ + ¼, 1 + ½, 1; never less
    assert [Momentum(1.0, 3).weight(t) for t in range(3)] == [3, 2, 1]
    assert Momentum(0.0, 3).weight(0) == 1


@pytest.mark.parametrize(("factor", "value"), [(1.75, 0.5), (1.0, 0.0), (0.5, 0.0), (3.0, 1.0), (9.0, 1.0)])
def test_momentum_of_three_steps_from_the_first_ones_factor(factor, value):
    assert Momentum.of(factor, 3).value == pytest.approx(value)


def test_momentum_of_many_steps():
    assert Momentum.of(10, 500).value == pytest.approx(0.9, abs=1e-9)


@pytest.fixture(scope="module")
def trained():
    """Six digits in three batches, each used once, with momentum; (network, images, parameters before every step and
    after the last, what the images of every step add to the last ones)."""
    images, model, batches = digits(6), Convolutional(), torch.arange(6).split(2)
    observations = [client(Convolutional(), images, batches[:t], lr=LR, momentum=VALUE) for t in range(4)]
    states = [one.final for one in observations]
    network, names = find_feature_network(model, (1, 8, 8)), tuple(states[0])
    steps = []
    for t, batch in enumerate(batches):
        outputs = torch.func.functional_call(model, states[t], (images[batch],))
        duals = LR / 2 * Momentum(VALUE, 3).weight(t) * (torch.eye(10)[batch] - outputs.detach().softmax(1))
        steps.append(step_of(network, states[t], names, images[batch], duals))
    return observations[-1], network, images, states, steps


def test_parameters_after_every_step_are_those_of_torch(trained):
    _, _, _, states, steps = trained
    for t in range(3):
        found = next_state(states[: t + 1], steps[t], Momentum(VALUE, 3))
        for name, value in states[t + 1].items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_the_factor_is_found_with_the_images_of_the_second_step(trained):
    observation, network, images, states, steps = trained
    search = PixelTest(network, states[0], factors(observation, 6).rows.float())
    rough = images[2:4] + 0.1 * torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    found, factor = fit_factor(search, steps[0], rough, 3.0)
    assert factor == pytest.approx(1.75, rel=0.02)
    assert (found - images[2:4]).flatten(1).norm(dim=1).max() < 0.1  # they were 0.8 away
    at = moved(states[0], steps[0], 1 / 1.75)
    torch.testing.assert_close(at["first.weight"], states[1]["first.weight"], rtol=1e-4, atol=1e-6)
