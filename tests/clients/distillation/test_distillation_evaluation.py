"""The three learners on a linear network, where each is least squares."""

import numpy as np
import pytest
import torch
from torch import nn

from clients.distillation.evaluation import Learners


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear_kernel(x, y=None):
    """⟨x, x'⟩ + 1: that of a linear layer with a bias."""
    return x.flatten(1) @ (x if y is None else y).flatten(1).T + 1


@pytest.fixture(params=[1, 3])
def case(request):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, request.param)).eval()
    test = normal(300, 1, 3, 3, seed=0)
    labels = torch.randint(max(2, request.param), (300,), generator=torch.Generator().manual_seed(1))
    images, targets = normal(6, 1, 3, 3, seed=2), normal(6, request.param, seed=3)
    return Learners(model, linear_kernel, test, labels, ridge=1e-12), images, targets


def with_ones(images):
    return np.hstack([images.flatten(1).double().numpy(), np.ones((len(images), 1))])


def expected_accuracy(evaluation, images, targets, start):
    """Of the least-norm step from the weights `start` (10, K) that fits the targets."""
    step = np.linalg.lstsq(with_ones(images), targets.double().numpy() - with_ones(images) @ start)[0]
    outputs = with_ones(evaluation.test_images) @ (start + step)
    predicted = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).astype(int)
    return (predicted == evaluation.labels.numpy()).mean()


def initial_weights(model):
    return torch.cat([model[1].weight.T, model[1].bias[None]]).detach().double().numpy()


def test_infinite_width_is_kernel_regression_from_zero(case):
    evaluation, images, targets = case
    start = np.zeros((10, targets.shape[1]))
    expected = expected_accuracy(evaluation, images, targets, start)
    assert evaluation.infinite_width(images, targets) == pytest.approx(expected, abs=1e-12)


def test_linearized_is_the_least_step_from_the_initial_network(case):
    evaluation, images, targets = case
    expected = expected_accuracy(evaluation, images, targets, initial_weights(evaluation.model))
    assert evaluation.linearized(images, targets) == pytest.approx(expected, abs=1e-12)


def test_standard_training_ends_at_the_mse_and_leaves_the_network_alone(case):
    evaluation, images, targets = case
    start = initial_weights(evaluation.model)
    trained = evaluation.standard(images, targets)
    assert trained.mse < 1e-3 and trained.steps < trained.limit == 10_000
    assert trained.accuracy == pytest.approx(expected_accuracy(evaluation, images, targets, start), abs=0.03)
    assert np.array_equal(initial_weights(evaluation.model), start)


def test_standard_training_stops_at_the_limit_and_its_mse_is_that_of_the_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2)).eval()
    images, targets = normal(6, 1, 3, 3, seed=2), normal(6, 2, seed=3)
    evaluation = Learners(model, linear_kernel, images, torch.zeros(6).long(), max_steps=1)
    trained = evaluation.standard(images, targets)
    assert trained.steps == trained.limit == 1
    assert trained.mse == pytest.approx(((model(images) - targets) ** 2).sum(1).mean().item(), rel=1e-5)
