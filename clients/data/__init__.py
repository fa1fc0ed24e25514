"""Sources of images by name: `load_dataset(config)` is the one door to them.

Adding one: a function `DataConfig -> Dataset` in `clients/data/sources/`, and a line in `SOURCES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from attacks.interface.errors import InputError, nearest
from clients.config import DataConfig
from clients.data.arrays import Dataset, Split
from clients.data.sources import cifar10, digits, folder, hub, idx, npz, tiny_imagenet


@dataclass(frozen=True)
class Source:
    """load: reads the data set. reads_root: whether `data.root` says which images these are; a cache does not."""

    load: Callable[[DataConfig], Dataset]
    reads_root: bool = True


SOURCES: dict[str, Source] = {
    "digits": Source(digits.load, reads_root=False),
    "mnist": Source(idx.load_mnist),
    "fashion_mnist": Source(idx.load_fashion_mnist),
    "cifar10": Source(cifar10.load),
    "tiny_imagenet": Source(tiny_imagenet.load),
    "folder": Source(folder.load),
    "npz": Source(npz.load),
}
HUB = Source(hub.load, reads_root=False)


def find_source(name: str) -> Source:
    """The source that `data.name` names; a name with a "/" is one of the Hugging Face hub. InputError for others."""
    if name in SOURCES:
        return SOURCES[name]
    if "/" in name:
        return HUB
    raise InputError(f"data.name is {name!r}, unknown{nearest(name, list(SOURCES))}; a hub data set is OWNER/NAME")


def load_dataset(config: DataConfig) -> Dataset:
    """The data set that `config` names.

    Raises InputError for an unknown name and for a `data.root` that does not hold what the source expects.
    """
    return _load(config.name, config.root, config.image_column, config.label_column)


def same_images(one: DataConfig, other: DataConfig) -> bool:
    """Whether both read the same data set, as far as their names and folders tell."""
    return one.name == other.name and (one.root == other.root or not find_source(one.name).reads_root)


# A Ray worker asks for its data in every round, a sweep in every cell; only these four fields decide what is read.
@lru_cache(maxsize=2)
def _load(name: str, root: str | None, image_column: str, label_column: str) -> Dataset:
    fields = {"name": name, "root": root, "image_column": image_column, "label_column": label_column}
    return find_source(name).load(DataConfig.model_validate(fields))


__all__ = ["SOURCES", "Dataset", "Source", "Split", "load_dataset", "same_images"]
