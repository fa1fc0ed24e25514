"""A table of a run directory that may have come by mail: what it would fill is known before memory is asked for it."""

import json
from pathlib import Path

import pandas as pd
from pyarrow import parquet

from simulator.results.columns import JSON, TEXT, Column, Table

SMALL = 2**22  # values that any table may hold; those of 40,000 attacks
MOST_VALUES = 20  # more, for each byte of the file: rows of a run have a dozen numbers that no packing makes smaller
SMALL_BYTES = 2**28  # that any table may unpack
MOST_BYTES = 100  # more, for each byte of the file
ROWS = 256  # that are unpacked at a time: a text that stands once in the file may stand in all of them


NAMED = ("round", "client", "threat_model", "attack", "status")  # that every row has, where its table has them


def read_table(path: Path, table: Table) -> pd.DataFrame:
    """ValueError for a table that is out of all proportion to its file, or not what a run writes; a damaged file makes
    its reader raise whatever its bytes lead it to."""
    _check_sizes(path)
    frame = pd.read_parquet(path)
    if not frame.columns.is_unique:
        raise ValueError("two columns have the same name")
    for name, column in table.columns.items():
        if name in frame:
            _check_values(frame[name], column)
        elif name in NAMED:
            raise ValueError(f"it has no column {name!r}")
    return frame


def _check_values(values: pd.Series, column: Column) -> None:
    known = values.dropna()
    is_text = column.dtype == TEXT
    fits = known.map(lambda value: isinstance(value, str)).all() if is_text else pd.api.types.is_numeric_dtype(known)
    if len(known) and not fits:
        raise ValueError(f"column {column.name!r} holds something else than {'texts' if is_text else 'numbers'}")
    if column.unit == JSON and not all(map(_is_json, known.unique())):
        raise ValueError(f"column {column.name!r} holds something else than JSON")
    if column.name in NAMED and len(known) < len(values):
        raise ValueError(f"column {column.name!r} has rows without a value")


def _check_sizes(path: Path) -> None:
    """What the file says of itself, then what comes out of it, a few rows at a time."""
    size = path.stat().st_size
    with parquet.ParquetFile(path) as file:
        told = file.metadata
        if told.num_rows * told.num_columns > max(SMALL, MOST_VALUES * size):
            raise ValueError(f"{size:,} bytes would unpack to {told.num_rows:,} rows of {told.num_columns:,} columns")
        most = max(SMALL_BYTES, MOST_BYTES * size)
        unpacked = sum(told.row_group(group).total_byte_size for group in range(told.num_row_groups))
        if unpacked > most:
            raise ValueError(f"{size:,} bytes would unpack to {unpacked:,}")
        unpacked = 0
        for batch in file.iter_batches(batch_size=ROWS, use_threads=False):
            unpacked += batch.nbytes
            if unpacked > most:
                raise ValueError(f"{size:,} bytes would unpack to more than {most:,}")


def _is_json(text: str) -> bool:
    """Whether it is an object, or a list of objects; "" stands for none."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return False
    return all(isinstance(part, dict) for part in (content if isinstance(content, list) else [content]))
