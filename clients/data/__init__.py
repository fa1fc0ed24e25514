"""Sources of images by name: `load_dataset(config)` is the one door to them.

Adding one: a function `DataConfig -> Dataset` in `clients/data/sources/`, and a line in `SOURCES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from attacks.interface.plugins import Registry
from clients.config import DataConfig
from clients.data.arrays import Dataset, Split
from clients.data.sources import cifar10, digits, faces, folder, hub, idx, npz, tiny_imagenet


@dataclass(frozen=True)
class Source:
    """load: reads the data set. reads_root: whether `data.root` says which images these are; a cache does not."""

    load: Callable[[DataConfig], Dataset]
    reads_root: bool = True


def _source(found: object) -> Source | None:
    """A plugin is a source, or a function `DataConfig -> Dataset`."""
    if isinstance(found, Source):
        return found
    return Source(found) if callable(found) else None


SOURCES: Registry[Source] = Registry("data.name", "fedspill.data", _source, "; a hub data set is OWNER/NAME")
SOURCES |= {
    "digits": Source(digits.load, reads_root=False),
    "faces": Source(faces.load, reads_root=False),
    "mnist": Source(idx.load_mnist),
    "fashion_mnist": Source(idx.load_fashion_mnist),
    "cifar10": Source(cifar10.load),
    "tiny_imagenet": Source(tiny_imagenet.load),
    "folder": Source(folder.load),
    "npz": Source(npz.load),
}
HUB = Source(hub.load, reads_root=False)


def find_source(name: str) -> Source:
    """The source that `data.name` names, also one of an installed package or at package.module:load; a name with a "/"
    is one of the Hugging Face hub. InputError for others."""
    return HUB if "/" in name and ":" not in name else SOURCES.find(name)


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
