import numpy as np
import pytest

from attacks.interface.errors import InputError
from clients.data.arrays import make_task

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


@pytest.mark.parametrize(
    ("given", "names", "groups", "group_of"),
    [
        ("odd_even", DIGITS, ("even", "odd"), [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
        ("animal_vehicle", CIFAR10, ("vehicle", "animal"), [0, 0, 1, 1, 1, 1, 1, 1, 0, 0]),
        # names and indices; the rest is left out
        ({"pets": ["cat", 5], "ships": [8]}, CIFAR10, ("pets", "ships"), [-1, -1, -1, 0, -1, 0, -1, -1, 1, -1]),
    ],
)
def test_a_task_puts_classes_into_groups(given, names, groups, group_of):
    task = make_task(given, names)
    assert task.groups == groups
    assert task.apply(np.arange(10)).tolist() == group_of


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
