import math

import pytest
import torch

from attacks.interface.errors import InputError
from clients.losses import accuracy, encode_targets, training_loss


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


def test_targets_of_several_outputs():
    labels = torch.tensor([2, 0])
    assert encode_targets(labels, 3, 3, "cross_entropy", None).tolist() == [2, 0]
    assert encode_targets(labels, 3, 3, "hinge", None).dtype == torch.int64
    torch.testing.assert_close(
        encode_targets(labels, 3, 3, "mse", None), torch.tensor([[-0.1, -0.1, 0.9], [0.9, -0.1, -0.1]])
    )
    assert encode_targets(labels, 3, 3, "mse", (0.0, 1.0)).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_targets_of_one_output():
    labels = torch.tensor([1, 0])
    for loss in ("mse", "hinge", "cross_entropy"):
        targets = encode_targets(labels, 2, 1, loss, None)
        assert targets.tolist() == [[1], [-1]]
        assert targets.dtype == torch.float32
    assert encode_targets(labels, 2, 1, "mse", (0.0, 1.0)).tolist() == [[1], [0]]
    assert encode_targets(labels, 2, 1, "hinge", (0.0, 1.0)).tolist() == [[1], [-1]]


@pytest.mark.parametrize("loss", ["mse", "hinge", "cross_entropy"])
def test_a_perfect_margin_has_a_smaller_loss_than_a_wrong_one(loss):
    labels = torch.tensor([1, 0])
    for outputs, right in ((1, torch.tensor([[1.0], [-1.0]])), (2, torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))):
        targets = encode_targets(labels, 2, outputs, loss, None)
        assert training_loss(loss, right, targets) < training_loss(loss, -right, targets)


@pytest.mark.parametrize(("outputs", "groups"), [(5, 10), (1, 3), (1, 10)])
def test_labels_that_do_not_fit_the_outputs(outputs, groups):
    with pytest.raises(InputError) as error:
        encode_targets(torch.zeros(4, dtype=torch.long), groups, outputs, "mse", None, "data 'digits'")
    expected = f"model.outputs is {outputs}, data 'digits' has {groups} classes"
    assert str(error.value) == f"{expected}: set model.outputs to {groups} or leave it out"
