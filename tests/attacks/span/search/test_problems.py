import torch

from attacks.networks.mlp import ACTIVATIONS
from attacks.span.search.problems import AffineSpan, FreePoints, SpanProblem, SpanTest
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


def test_an_image_that_was_moved_away_comes_back(federated):
    """Along two random directions of the first layer's span, by an L2 of 0.5, and back within float32's rounding of
    the checkpoints; told of no direction it stays."""
    images, observation, _ = federated
    test, duals = first_two(observation)
    draws = torch.Generator().manual_seed(0)
    free = torch.randn(2, duals.count, generator=draws, dtype=torch.float64) @ duals.rows
    image = images[0].flatten().double()
    away = free[0, :-1] - free[0, -1] * image
    away *= 0.5 / away.norm()
    assert (FreePoints.of(test, free).settled(image + away) - image).norm() < 0.01
    assert torch.equal(FreePoints.of(test, free[:0]).settled(image), image)
