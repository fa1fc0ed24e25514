"""Any image data set of the Hugging Face hub, or a local folder that `datasets.load_dataset` understands."""

from typing import TYPE_CHECKING, Any

import numpy as np

from attacks.interface.errors import InputError, one_line
from clients.config import DataConfig
from clients.data.arrays import Dataset, holdout, index_classes
from clients.data.files import PictureFormat, PictureSplit, format_of, quiet, read_errors

if TYPE_CHECKING:
    from datasets import Dataset as Table


def load(config: DataConfig) -> Dataset:
    """The train split, and test or validation (else a fixed 80/20 split). `data.root`, if given, is the hub's cache."""
    with quiet():
        tables = [_check_columns(config, table) for table in _tables(config)]
        labels, names = _labels(config, tables)
        first = f"{config.name}: image 0"
        with read_errors(first):
            shared = format_of(first, tables[0][0][config.image_column])
    splits = [_split(config, table, own, shared) for table, own in zip(tables, labels, strict=True)]
    if len(splits) == 1:
        splits = [splits[0].select(part) for part in holdout(len(labels[0]))]
    return Dataset(splits[0], splits[1], names)


def _tables(config: DataConfig) -> list["Table"]:
    """Return the train table, and that of the test images if there is one."""
    import datasets  # 0.7 s, which runs on other data are spared

    try:
        splits = dict(datasets.load_dataset(config.name, cache_dir=config.root))
    except Exception as error:  # the layers below raise errors of a dozen unrelated classes
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"data {config.name!r} could not be loaded from the Hugging Face hub: {reason}") from None
    if "train" not in splits and len(splits) > 1:
        raise InputError(f"data {config.name!r} has no split 'train' (it has {', '.join(splits)})")
    train = splits.pop("train") if "train" in splits else splits.popitem()[1]
    for table in (splits[name] for name in ("test", "validation") if name in splits):
        # the hub's benchmarks withhold labels as −1; a missing column is reported later
        if config.label_column not in table.column_names or -1 not in table[config.label_column][:]:
            return [train, table]
    return [train]


def _check_columns(config: DataConfig, table: "Table") -> "Table":
    """Return the two columns, the first of them as Pillow images."""
    import datasets  # likewise

    for key, column in (("image_column", config.image_column), ("label_column", config.label_column)):
        if column not in table.column_names:
            columns = ", ".join(table.column_names)
            raise InputError(f"data.{key} is {column!r}: data {config.name!r} has the columns {columns}")
    table = table.select_columns([config.image_column, config.label_column])
    if isinstance(table.features[config.image_column], datasets.Image):
        return table
    try:
        return table.cast_column(config.image_column, datasets.Image())
    except Exception:  # pyarrow's and its own errors alike mean that these are no images
        kind = one_line(table.features[config.image_column])
        raise InputError(f"data.image_column is {config.image_column!r}: it holds {kind}, no images") from None


def _labels(config: DataConfig, tables: list["Table"]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return (the class indices (N,) int64 of every table, the names of the classes)."""
    import datasets  # likewise

    labels = [np.asarray(table[config.label_column][:]) for table in tables]
    feature: Any = tables[0].features[config.label_column]
    if not isinstance(feature, datasets.ClassLabel):
        train, test = labels[0], labels[-1] if len(labels) > 1 else labels[0][:0]
        train, test, names = index_classes(f"data {config.name!r}", train, test)
        return [train, test][: len(tables)], names
    for values in labels:
        if values.dtype.kind not in "iu" or values.min() < 0:
            raise InputError(f"data {config.name!r}: column {config.label_column!r} leaves images without a label")
    return [values.astype(np.int64) for values in labels], tuple(feature.names)


def _split(config: DataConfig, table: "Table", labels: np.ndarray, shared: PictureFormat) -> PictureSplit:
    part = table.split or "train"
    return PictureSplit(
        labels,
        lambda index: table[index][config.image_column],
        lambda index: f"{config.name}: {part} image {index}",
        shared,
    )
