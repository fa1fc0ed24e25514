import torch

from attacks.span.feature_space.network import UpdateFactors, find_feature_network, output_jacobian, step_of
from tests.attacks.conftest import digits
from tests.attacks.span.conftest import Convolutional, client

LR = 0.3


def factors(observation, rank):
    """U S Vᵀ of the first fully connected layer's update, by the singular value decomposition."""
    delta = observation.delta()
    left, values, rows = torch.linalg.svd(torch.cat([delta["first.weight"], delta["first.bias"][:, None]], 1))
    return UpdateFactors(left[:, :rank], values[:rank], rows[:rank], True)


def test_duals_of_a_step_are_the_step_size_times_the_loss_gradient(minibatches):
    images, observation, _ = minibatches
    network = find_feature_network(observation.model, (1, 8, 8))
    state = observation.initial
    points = torch.cat([network.features(state, images), torch.ones(6, 1)], 1).detach()
    duals, gradient = factors(observation, 24).duals(output_jacobian(network, state, images), points)
    outputs = torch.func.functional_call(observation.model, state, (images,)).detach().double()
    expected = LR / 3 * (torch.eye(10, dtype=torch.float64)[:6] - outputs.softmax(1))
    torch.testing.assert_close(duals[:3], expected[:3], rtol=1e-2, atol=1e-5)
    assert gradient[:3].max() < 1e-7 and gradient[3:].min() > 1e-3


def test_a_step_is_that_of_sgd():
    model, images = Convolutional(), digits(3)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    names = tuple(initial)
    duals = LR / 3 * (torch.eye(10)[:3] - model(images).detach().softmax(1))
    expected = client(model, images, batch=3, epochs=1, lr=LR).final
    found = step_of(find_feature_network(model, (1, 8, 8)), initial, names, images, duals)
    for name in names:
        torch.testing.assert_close(initial[name] + found[name], expected[name])
