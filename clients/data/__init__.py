"""Load images by the name of their source. A new source is a function `DataConfig -> Dataset` in
`clients/data/sources/` and a line in `SOURCES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from attacks.interface.plugins import Registry
from clients.config import DataConfig
from clients.data.arrays import Dataset, Split
from clients.data.sources import embedded, folder, hub, idx, npz, tiny_imagenet


@dataclass(frozen=True)
class Source:
    """A source of images.

    load: reads the data set.
    reads_root: whether `data.root` says which images are read; False if it names a cache or nothing.
    """

    load: Callable[[DataConfig], Dataset]
    reads_root: bool = True


def _source(found: object) -> Source | None:
    """Make a source of a plugin: a `Source`, or a function `DataConfig -> Dataset`. None for anything else."""
    if isinstance(found, Source):
        return found
    return Source(found) if callable(found) else None


SOURCES: Registry[Source] = Registry("data.name", "fedspill.data", _source, "; a hub data set is OWNER/NAME")
SOURCES |= {
    "digits": Source(embedded.load_digits, reads_root=False),
    "faces": Source(embedded.load_faces, reads_root=False),
    "mnist": Source(idx.load_mnist),
    "fashion_mnist": Source(idx.load_fashion_mnist),
    "cifar10": Source(npz.load_cifar10),
    "tiny_imagenet": Source(tiny_imagenet.load),
    "folder": Source(folder.load),
    "npz": Source(npz.load),
}
HUB = Source(hub.load, reads_root=False)


def find_source(name: str) -> Source:
    """Return the source of a name: built in, a plugin, or the hub for OWNER/NAME. Raise InputError for another one."""
    return HUB if "/" in name and ":" not in name else SOURCES.find(name)


def load_dataset(config: DataConfig) -> Dataset:
    """Load the data set of a config; raise InputError for an unknown name, or files missing from `data.root`."""
    return _load(config.name, config.root, config.image_column, config.label_column)


def same_images(one: DataConfig, other: DataConfig) -> bool:
    """Return whether both read the same data set, by their names and folders."""
    return one.name == other.name and (one.root == other.root or not find_source(one.name).reads_root)


# A Ray worker asks for its data in every round, a sweep in every cell; only these four fields decide what is read.
@lru_cache(maxsize=2)
def _load(name: str, root: str | None, image_column: str, label_column: str) -> Dataset:
    fields = {"name": name, "root": root, "image_column": image_column, "label_column": label_column}
    return find_source(name).load(DataConfig.model_validate(fields))


__all__ = ["SOURCES", "Dataset", "Source", "Split", "load_dataset", "same_images"]
