"""What is predicted: the classes of a data set, or groups of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attacks.interface.errors import InputError, nearest

UNUSED = -1
ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse")
VEHICLES = ("airplane", "automobile", "ship", "truck")


@dataclass(frozen=True)
class Task:
    """groups: their names. group_of: for every class of the data its group, or −1 where its images are left out."""

    groups: tuple[str, ...]
    group_of: tuple[int, ...]

    def apply(self, labels: np.ndarray) -> np.ndarray:
        """Class indices (N,) -> int64 group indices (N,), −1 for images of unused classes."""
        return np.array(self.group_of, np.int64)[labels]


def make_task(task: str | Mapping[str, Sequence[int | str]] | None, class_names: Sequence[str]) -> Task:
    """The task that `data.task` names. None: every class is a group of its own.

    odd_even: even digits are group 0, odd ones group 1. animal_vehicle: vehicles are group 0, animals group 1 (the
    CIFAR-10 classes). A mapping lists the classes of every group, by name or by index.
    Raises InputError for an unknown class, a class in two groups, an empty group, fewer than two groups.
    """
    if task is None:
        return _checked(Task(tuple(class_names), tuple(range(len(class_names)))))
    if isinstance(task, str):
        task = _named(task, class_names)
    group_of = [UNUSED] * len(class_names)
    for index, (group, classes) in enumerate(task.items()):
        for entry in classes:
            position = _find(entry, group, class_names)
            if group_of[position] not in (UNUSED, index):
                other = list(task)[group_of[position]]
                raise InputError(f"data.task: class {entry!r} is in the groups {other!r} and {group!r}: keep it in one")
            group_of[position] = index
    return _checked(Task(tuple(task), tuple(group_of)))


def _named(task: str, class_names: Sequence[str]) -> dict[str, list[int | str]]:
    """A task by its name as a mapping of groups to class names."""
    if task == "odd_even":
        digits = [str(digit) for digit in range(10)]
        _require(task, class_names, digits, "the digits 0 to 9")
        return {"even": [*digits[::2]], "odd": [*digits[1::2]]}
    if task == "animal_vehicle":
        _require(task, class_names, [*VEHICLES, *ANIMALS], "those of CIFAR-10")
        return {"vehicle": [*VEHICLES], "animal": [*ANIMALS]}
    known = nearest(task, ["odd_even", "animal_vehicle"])
    raise InputError(f"data.task is {task!r}, unknown{known}; or give a mapping of groups to classes")


def _require(task: str, class_names: Sequence[str], wanted: list[str], described: str) -> None:
    strange = [name for name in class_names if name not in wanted] or [w for w in wanted if w not in class_names]
    if strange:
        state = "is not one of them" if strange[0] in class_names else "is missing"
        raise InputError(f"data.task is {task!r}, which needs classes that are {described}: {strange[0]!r} {state}")


def _find(entry: int | str, group: str, class_names: Sequence[str]) -> int:
    """The index of a class. Where classes are called by numbers, a number is a name and not an index."""
    if str(entry) in class_names:
        return list(class_names).index(str(entry))
    by_index = isinstance(entry, int) and not all(name.lstrip("-").isdigit() for name in class_names)
    if isinstance(entry, int) and by_index and 0 <= entry < len(class_names):
        return entry
    limit = f"; indices go from 0 to {len(class_names) - 1}" if by_index else nearest(str(entry), list(class_names))
    raise InputError(f"data.task: class {entry!r} of group {group!r} is unknown{limit}")


def _checked(task: Task) -> Task:
    if len(task.groups) < 2:
        found = f"one group, {task.groups[0]!r}" if task.groups else "no group"
        raise InputError(f"data.task: there is {found}: two or more are needed")
    for index, group in enumerate(task.groups):
        if index not in task.group_of:
            raise InputError(f"data.task: group {group!r} has no classes: list some or remove it")
    return task
