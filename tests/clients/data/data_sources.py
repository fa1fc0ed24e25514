"""What the tests of the data sources share."""

import numpy as np
import pytest

from attacks.interface.errors import InputError
from clients.config import DataConfig
from clients.data import load_dataset


def load(name, root=None, **columns):
    return load_dataset(DataConfig(name=name, root=None if root is None else str(root), **columns))


def refused(name, root=None, **columns):
    """The message of the one error."""
    with pytest.raises(InputError) as error:
        load(name, root, **columns)
    text = str(error.value)
    assert "\n" not in text
    return text


def images_of(split, *indices):
    return split.images(np.array(indices))


def patterns(count, shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)
