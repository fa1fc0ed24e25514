import torch
import torch.nn.functional as F
from torch import nn

from attacks.span.feature_space.network import FeatureProblem, find_feature_network
from attacks.span.search.problems import AffineSpan, SpanProblem, SpanTest
from tests.attacks.conftest import digits
from tests.attacks.span.conftest import Convolutional


def test_layers_are_found_by_their_use_not_by_their_order():
    network = find_feature_network(Convolutional(), (1, 8, 8))
    assert network.layers == ("first", "second", "out") and network.nonnegative
    torch.testing.assert_close(network.activation(torch.tensor([-1.0, 2.0]), None)[0], torch.tensor([0.0, 2.0]))
    smooth = find_feature_network(Convolutional(activation=torch.tanh), (1, 8, 8))
    assert not smooth.nonnegative
    torch.testing.assert_close(smooth.activation(torch.tensor([0.5]), None)[0], torch.tensor([0.46211716]))
    assert find_feature_network(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8)) is None
    assert find_feature_network(nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), (1, 8, 8)) is None


def test_features_are_what_the_first_fully_connected_layer_is_fed():
    model, images = Convolutional(), digits(3)
    expected = F.relu(model.deep(F.avg_pool2d(F.relu(model.conv(images)), 2))).flatten(1)
    torch.testing.assert_close(find_feature_network(model, (1, 8, 8)).features(model.state_dict(), images), expected)


def test_feature_gradient_is_that_of_the_penalized_residual():
    generator = torch.Generator().manual_seed(0)
    first, rows = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((12, 10), (4, 13)))
    test = SpanTest(first, torch.linalg.qr(rows.T)[0].T[None], lambda z, beta: (torch.tanh(z), 1 - torch.tanh(z) ** 2))
    span = AffineSpan.of(torch.randn(6, 10, generator=generator, dtype=torch.float64), generator)
    problem = FeatureProblem.of(SpanProblem.of(test, span), span, nonnegative=True)
    point = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    value, gradient = problem.value_and_gradient(point)
    h = span.images(point)
    negative = torch.where(h < 0, h, 0.0)
    torch.testing.assert_close(value, test.residual(h) + (negative**2).sum(1) / (h**2).sum(1))
    for j in range(5):
        shift = 1e-6 * torch.eye(5, dtype=torch.float64)[j]
        ahead, behind = (problem.value_and_gradient(point + sign * shift)[0] for sign in (1, -1))
        torch.testing.assert_close((ahead - behind) / 2e-6, gradient[:, j], rtol=1e-4, atol=1e-7)
