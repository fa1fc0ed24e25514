import math

import pytest
import torch

from attacks.interface.errors import InputError
from clients.training import accuracy, encode_targets, training_loss


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "expected"),
    [
        # half the squared error, summed over outputs and averaged over images
        ("mse", [[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]], 0.5 * (1 + 4) / 2),
        ("cross_entropy", [[2.0], [-1.0]], [[1.0], [1.0]], (math.log(1 + math.exp(-2)) + math.log(1 + math.e)) / 2),
        ("hinge", [[0.5], [3.0]], [[1.0], [1.0]], 0.25),
        # Crammer and Singer's takes the strongest rival only: own score 1, rivals 0.5 and 0.9: max(0, 1 + 0.9 − 1)
        ("hinge", [[0.5, 1.0, 0.9]], [1], 0.9),
    ],
)
def test_losses_by_hand(loss, outputs, targets, expected):
    found = training_loss(loss, torch.tensor(outputs), torch.tensor(targets))
    assert float(found) == pytest.approx(expected, rel=1e-6)


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
