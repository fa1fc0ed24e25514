"""Sources of images by name: `load_dataset(config)` is the one door to them."""

from collections.abc import Callable
from functools import lru_cache

from attacks.interface.errors import InputError, nearest
from clients.config import DataConfig
from clients.data import cifar10, digits, folder, hub, idx, npz, tiny_imagenet
from clients.data.base import Dataset, Split

SOURCES: dict[str, Callable[[DataConfig], Dataset]] = {
    "digits": digits.load,
    "mnist": idx.load_mnist,
    "fashion_mnist": idx.load_fashion_mnist,
    "cifar10": cifar10.load,
    "tiny_imagenet": tiny_imagenet.load,
    "folder": folder.load,
    "npz": npz.load,
}


def load_dataset(config: DataConfig) -> Dataset:
    """The data set that `config` names; a name with a "/" is one of the Hugging Face hub.

    Raises InputError for an unknown name and for a `data.root` that does not hold what the source expects.
    """
    return _load(config.name, config.root, config.image_column, config.label_column)


# A Ray worker asks for its data in every round, a sweep in every cell; only these four fields decide what is read.
@lru_cache(maxsize=2)
def _load(name: str, root: str | None, image_column: str, label_column: str) -> Dataset:
    fields = {"name": name, "root": root, "image_column": image_column, "label_column": label_column}
    config = DataConfig.model_validate(fields)
    if name in SOURCES:
        return SOURCES[name](config)
    if "/" in name:
        return hub.load(config)
    raise InputError(f"data.name is {name!r}, unknown{nearest(name, list(SOURCES))}; a hub data set is OWNER/NAME")


__all__ = ["SOURCES", "Dataset", "Split", "load_dataset"]
