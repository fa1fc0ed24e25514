import pytest
import torch

from attacks.span.feature_space.inversion import PixelTest, roughness
from attacks.span.feature_space.network import find_feature_network
from tests.attacks.span.feature_space.test_sgd_steps import factors


def test_pixel_residual_is_the_part_outside_the_rows(minibatches):
    images, observation, _ = minibatches
    network = find_feature_network(observation.model, (1, 8, 8))
    rows = factors(observation, 24).rows
    test = PixelTest(network, observation.initial, rows.float())
    g = torch.cat([network.features(observation.initial, images), torch.ones(6, 1)], 1).detach().double()
    expected = ((g - g @ rows.T @ rows) ** 2).sum(1) / (g**2).sum(1)
    torch.testing.assert_close(test.residual(images, 24).detach().double(), expected, rtol=1e-2, atol=1e-12)
    assert expected[:3].max() < 1e-9 < 1e-5 < expected[3:].min()  # the second batch saw other parameters
    one = PixelTest(network, observation.initial, g[:1].float() / g[:1].norm().float())
    assert one.residual(images[:1], 1) < 1e-12
    known = torch.linalg.qr(g[:1].T)[0].T.float()
    deflated = test.residual(images, 12, known) / test.residual(images, 12)
    assert deflated[0] == pytest.approx(1000, rel=1e-3) and (deflated[1:] >= 1).all() and (deflated[1:] < 100).all()


def test_roughness_is_the_mean_squared_step_between_neighbours():
    image = torch.tensor([[0.0, 1.0], [0.0, 3.0]])[None, None]
    assert roughness(image).tolist() == pytest.approx([(0 + 4) / 2 + (1 + 9) / 2])
