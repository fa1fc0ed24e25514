"""What is predicted: groups of classes, and the targets that a loss wants for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.interface.errors import InputError, nearest

UNUSED = -1
ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse")
VEHICLES = ("airplane", "automobile", "ship", "truck")
BINARY_CODING = (-1.0, 1.0)
CLASS_CODING = (-0.1, 0.9)


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


def encode_targets(
    labels: Tensor,
    num_groups: int,
    outputs: int,
    loss: str,
    coding: tuple[float, float] | None = None,
    source: str = "the data set",
) -> Tensor:
    """Targets of group indices (N,), as `clients.losses.training_loss` takes them.

    mse: (N, outputs) float, coding[1] for the right group and coding[0] else; default −0.1 and 0.9. With one output
    (N, 1), coding[0] for group 0 and coding[1] for group 1; default ∓1. hinge and cross_entropy: ∓1 (N, 1) for one
    output, else the int64 labels; they have no coding. source: how errors call the data.
    Raises InputError where the groups do not fit the outputs.
    """
    needed = 2 if outputs == 1 else outputs
    if num_groups > needed:
        remedy = f"set model.outputs to {num_groups} or leave it out"
        raise InputError(f"model.outputs is {outputs}, {source} has {num_groups} classes: {remedy}")
    if outputs == 1:
        low, high = coding if coding and loss == "mse" else BINARY_CODING
        return torch.where(labels == 1, high, low).float()[:, None]
    if loss != "mse":
        return labels.long()
    low, high = coding or CLASS_CODING
    return torch.full((len(labels), outputs), low).scatter(1, labels.long()[:, None], high)


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
