import torch

from attacks.networks.mlp import ACTIVATIONS
from attacks.span.search.candidates import moved
from attacks.span.search.descent import with_gradient
from attacks.span.search.problems import AffineSpan, SpanProblem, SpanTest
from tests.attacks.conftest import digits
from tests.attacks.span.conftest import first_two


def test_residual_tells_private_images_from_others(federated):
    images, observation, _ = federated
    test, _ = first_two(observation)
    private, others = test.residual(images.flatten(1)), test.residual(digits(100)[8:].flatten(1))
    assert private.max() * 20 < others.min()


def test_gradient_is_that_of_the_deflated_residual(federated):
    images, observation, _ = federated
    test, duals = first_two(observation)
    span = AffineSpan.of(duals.rows, torch.Generator().manual_seed(0))
    test = SpanTest(test.first.double(), torch.linalg.qr(test.rows.double().mT)[0].mT, test.activate)
    problem = SpanProblem.of(test, span)
    found = torch.linalg.qr(test.features(images[:3].flatten(1).double()).T)[0].T
    point = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient = problem.value_and_gradient(point, found)[1]
    for j in range(7):
        shift = torch.zeros(7, dtype=torch.float64)
        shift[j] = 1e-6
        ahead, behind = (problem.value_and_gradient(point + sign * shift, found)[0] for sign in (1, -1))
        torch.testing.assert_close((ahead - behind) / 2e-6, gradient[:, j], rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(problem.value_and_gradient(point)[0], test.residual(span.images(point)))


def test_leading_directions_are_the_first_of_every_round(federated):
    _, observation, _ = federated
    test, duals = first_two(observation)
    span = AffineSpan.of(duals.rows, torch.Generator().manual_seed(0))
    point = torch.randn(2, 7, generator=torch.Generator().manual_seed(1))
    fewer = SpanTest(test.first, test.rows[:, :16], ACTIVATIONS["relu"])
    problem, few = SpanProblem.of(test, span), SpanProblem.of(fewer, span)
    assert problem.leading(None) is problem
    for part, other in zip(problem.leading(16).value_and_gradient(point), few.value_and_gradient(point), strict=True):
        torch.testing.assert_close(part, other)


def test_scaled_coordinates_reach_every_point_of_the_span():
    draws = torch.Generator().manual_seed(0)
    rows = (
        torch.diag(torch.tensor([100.0, 4.0, 1.0]).double())
        @ torch.linalg.qr(torch.randn(6, 3, generator=draws, dtype=torch.float64))[0].T
    )
    span = AffineSpan.scaled(rows)
    points = span.origin + torch.randn(4, 3, generator=draws, dtype=torch.float64) @ span.directions
    assert torch.allclose(points[:, -1], torch.ones(4).double())
    assert torch.linalg.matrix_rank(torch.cat([points, rows])) == 3
    assert torch.linalg.matrix_rank(span.directions) == 2
    lengths = (span.directions.T @ span.directions).trace() / 3
    assert torch.allclose(lengths, span.origin.square().sum())  # a coordinate is worth the origin's length, in rms


def test_what_exact_images_leave_free_has_the_gradient_of_the_residual(federated):
    images, observation, _ = federated
    test, _ = first_two(observation)
    draws = torch.Generator().manual_seed(0)
    points = torch.nn.functional.pad(images[:3].flatten(1), (0, 1), value=1.0).double()
    free = torch.randn(2, 65, generator=draws, dtype=torch.float64)
    test = SpanTest(test.first.double(), test.rows.double(), test.activate)
    loss = with_gradient(lambda at: test.residual(moved(points, free, at)))
    at = 0.1 * torch.randn(3, 2, generator=draws, dtype=torch.float64)
    value, gradient = loss(at)
    step = 1e-6 * torch.eye(2).double()
    for k in range(2):
        slope = (loss(at + step[k])[0] - loss(at - step[k])[0]) / 2e-6
        assert torch.allclose(slope, gradient[:, k], rtol=1e-5, atol=1e-8)
    assert torch.allclose(value, test.residual(moved(points, free, at)))
    assert torch.allclose(moved(points, free, torch.zeros(3, 2).double()), images[:3].flatten(1).double())
