import math

import pytest
import torch

from clients.losses import accuracy, training_loss


def test_mse_is_half_the_squared_error_summed_over_outputs_and_averaged_over_images():
    outputs, targets = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    assert float(training_loss("mse", outputs, targets)) == pytest.approx(0.5 * (1 + 4) / 2)


def test_logistic_loss_of_one_output():
    loss = training_loss("cross_entropy", torch.tensor([[2.0], [-1.0]]), torch.tensor([[1.0], [1.0]]))
    assert float(loss) == pytest.approx((math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))) / 2, rel=1e-6)


def test_hinge_of_one_output():
    loss = training_loss("hinge", torch.tensor([[0.5], [3.0]]), torch.tensor([[1.0], [1.0]]))
    assert float(loss) == pytest.approx(0.25)


def test_crammer_singer_takes_the_strongest_rival_only():
    # own score 1, rivals 0.5 and 0.9: max(0, 1 + 0.9 − 1) = 0.9
    loss = training_loss("hinge", torch.tensor([[0.5, 1.0, 0.9]]), torch.tensor([1]))
    assert float(loss) == pytest.approx(0.9)


def test_accuracy():
    assert accuracy(torch.tensor([[0.1], [-0.1]]), torch.tensor([1, 1])) == 0.5
    assert accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 0])) == 1.0
