import numpy as np
import pytest
import torch

from attacks.interface.errors import InputError
from clients.data.tasks import make_task
from clients.losses import encode_targets, training_loss

DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def message(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_without_a_task_every_class_is_a_group():
    task = make_task(None, CIFAR10)
    assert task.groups == CIFAR10
    assert task.apply(np.array([9, 0, 3])).tolist() == [9, 0, 3]


def test_odd_digits_are_group_one():
    task = make_task("odd_even", DIGITS)
    assert task.groups == ("even", "odd")
    assert task.apply(np.arange(10)).tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]


def test_animals_are_group_one():
    task = make_task("animal_vehicle", CIFAR10)
    assert task.groups == ("vehicle", "animal")
    assert task.apply(np.arange(10)).tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 0, 0]


def test_a_mapping_takes_names_and_indices_and_leaves_the_rest_out():
    task = make_task({"pets": ["cat", 5], "ships": [8]}, CIFAR10)
    assert task.groups == ("pets", "ships")
    assert task.apply(np.arange(10)).tolist() == [-1, -1, -1, 0, -1, 0, -1, -1, 1, -1]


def test_a_number_is_a_name_where_classes_are_called_by_numbers():
    assert make_task({"a": [3], "b": ["7"]}, ("3", "7")).group_of == (0, 1)
    with pytest.raises(InputError) as error:
        make_task({"a": [0], "b": [1]}, ("3", "7"))
    assert message(error) == "data.task: class 0 of group 'a' is unknown (known: 3, 7)"


@pytest.mark.parametrize(
    ("task", "names", "expected"),
    [
        ({"a": ["hrse"], "b": ["cat"]}, CIFAR10, "class 'hrse' of group 'a' is unknown; did you mean 'horse'?"),
        ({"a": [10], "b": [1]}, CIFAR10, "class 10 of group 'a' is unknown; indices go from 0 to 9"),
        ({"a": [-1], "b": [1]}, CIFAR10, "class -1 of group 'a' is unknown"),
        ({"a": ["cat"], "b": ["dog", 3]}, CIFAR10, "class 3 is in the groups 'a' and 'b': keep it in one"),
        ({"a": ["cat"]}, CIFAR10, "there is one group, 'a': two or more are needed"),
        ({}, CIFAR10, "there is no group: two or more are needed"),
        ({"a": ["cat"], "b": []}, CIFAR10, "group 'b' has no classes"),
        (None, ("only",), "there is one group, 'only'"),
        ("odd_evn", DIGITS, "data.task is 'odd_evn', unknown; did you mean 'odd_even'?"),
        ("odd_even", CIFAR10, "needs classes that are the digits 0 to 9: 'airplane' is not one of them"),
        ("odd_even", DIGITS[:9], "needs classes that are the digits 0 to 9: '9' is missing"),
        ("animal_vehicle", DIGITS, "needs classes that are those of CIFAR-10: '0' is not one of them"),
    ],
)
def test_bad_tasks(task, names, expected):
    with pytest.raises(InputError) as error:
        make_task(task, names)
    assert expected in message(error)


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
    assert message(error) == f"{expected}: set model.outputs to {groups} or leave it out"
