"""`Dataset`, which a source of images returns; images in memory; fixed splits; tasks: groups of classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from attacks.interface.errors import InputError, did_you_mean
from attacks.interface.torch_tools import numpy_generator


class Split(Protocol):
    """Labelled images that are decoded only when asked for."""

    @property
    def labels(self) -> np.ndarray:
        """(N,) int64 class indices."""

    def images(self, indices: np.ndarray) -> Tensor:
        """Read images (n, C, H, W), float32 in [0, 1], in the order of `indices`."""


@dataclass(frozen=True)
class Dataset:
    """A data set of a source: official train and test splits and the names of its classes."""

    train: Split
    test: Split
    class_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """Images in memory.

    pixels: (N, C, H, W), uint8 or floats in [0, 1]: only selected images become float32.
    labels: (N,) int64.
    """

    pixels: np.ndarray
    labels: np.ndarray

    def images(self, indices: np.ndarray) -> Tensor:
        images = torch.from_numpy(np.ascontiguousarray(self.pixels[indices], np.float32))
        return images / 255 if self.pixels.dtype == np.uint8 else images


def holdout(count: int, num_test: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return indices (train, test) of a random split, always the same for the same count; default 80/20. It does not
    depend on the scenario's seed: the test images of a data set stay its test images."""
    num_test = max(1, count // 5) if num_test is None else num_test
    if count <= num_test:
        raise InputError(f"{count} images are too few to hold out {num_test} for testing: provide more, or a test set")
    order = numpy_generator(0, "holdout").permutation(count)
    return order[:-num_test], order[-num_test:]


def index_classes(source: str, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return (train (N,), test (M,)) int64 indices into the sorted classes of train, and their names. source: the
    data's name in errors. Raise InputError for labels not integers or strings, and for a class without train images."""
    for part, labels in (("train", train), ("test", test)):
        if labels.ndim != 1 or labels.dtype.kind not in "biuUS":
            found = f"{labels.dtype} of shape {labels.shape}"
            raise InputError(f"{source}: {part} labels are {found}: one integer or string per image is expected")
    values, train_indices = np.unique(train, return_inverse=True)
    strangers = np.setdiff1d(test, values)
    if len(strangers):
        raise InputError(f"{source}: class {str(strangers[0])!r} has test images and no training images")
    names = tuple(value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist())
    return train_indices.astype(np.int64), np.searchsorted(values, test).astype(np.int64), names


UNUSED = -1
NAMED: dict[str, tuple[dict[str, list[str]], str]] = {  # ({group: its classes}, all these classes in words)
    "odd_even": ({"even": ["0", "2", "4", "6", "8"], "odd": ["1", "3", "5", "7", "9"]}, "the digits 0 to 9"),
    "animal_vehicle": (
        {
            "vehicle": ["airplane", "automobile", "ship", "truck"],
            "animal": ["bird", "cat", "deer", "dog", "frog", "horse"],
        },
        "those of CIFAR-10",
    ),
}


@dataclass(frozen=True)
class Task:
    """The groups to predict.

    groups: their names.
    group_of: the group of every class, −1 to leave out its images.
    """

    groups: tuple[str, ...]
    group_of: tuple[int, ...]

    def apply(self, labels: np.ndarray) -> np.ndarray:
        """Return int64 group indices (N,) of class indices (N,), −1 for images of unused classes."""
        return np.array(self.group_of, np.int64)[labels]


def make_task(task: str | Mapping[str, Sequence[int | str]] | None, class_names: Sequence[str]) -> Task:
    """Make the task that `data.task` names. None: every class is a group of its own.

    A name is one of `NAMED`; a mapping lists the classes of every group, by name or by index.
    Raise InputError for an unknown class, a class in two groups, an empty group, fewer than two groups.
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


def _named(task: str, class_names: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return a named task as a mapping of groups to class names."""
    if task not in NAMED:
        known = did_you_mean(task, list(NAMED))
        raise InputError(f"data.task is {task!r}, unknown{known}; or give a mapping of groups to classes")
    groups, described = NAMED[task]
    wanted = [name for classes in groups.values() for name in classes]
    strange = [name for name in class_names if name not in wanted] or [w for w in wanted if w not in class_names]
    if strange:
        state = "is not one of them" if strange[0] in class_names else "is missing"
        raise InputError(f"data.task is {task!r}, which needs classes that are {described}: {strange[0]!r} {state}")
    return groups


def _find(entry: int | str, group: str, class_names: Sequence[str]) -> int:
    """Return the index of a class. If classes have numbers for names, a number is a name and not an index."""
    if str(entry) in class_names:
        return list(class_names).index(str(entry))
    by_index = isinstance(entry, int) and not all(name.lstrip("-").isdigit() for name in class_names)
    if isinstance(entry, int) and by_index and 0 <= entry < len(class_names):
        return entry
    limit = (
        f"; indices go from 0 to {len(class_names) - 1}" if by_index else did_you_mean(str(entry), list(class_names))
    )
    raise InputError(f"data.task: class {entry!r} of group {group!r} is unknown{limit}")


def _checked(task: Task) -> Task:
    if len(task.groups) < 2:
        found = f"one group, {task.groups[0]!r}" if task.groups else "no group"
        raise InputError(f"data.task: there is {found}: two or more are needed")
    for index, group in enumerate(task.groups):
        if index not in task.group_of:
            raise InputError(f"data.task: group {group!r} has no classes: list some or remove it")
    return task
