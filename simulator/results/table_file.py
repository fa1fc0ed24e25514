"""A table of a run directory that may have come by mail: what it would fill is known before memory is asked for it."""

from pathlib import Path

import pandas as pd
from pyarrow import parquet

SMALL = 2**22  # values that any table may hold; those of 40,000 attacks
MOST_VALUES = 20  # more, for each byte of the file: rows of a run have a dozen numbers that no packing makes smaller
SMALL_BYTES = 2**28  # that any table may unpack
MOST_BYTES = 100  # more, for each byte of the file
ROWS = 256  # that are unpacked at a time: a text that stands once in the file may stand in all of them


def read_table(path: Path) -> pd.DataFrame:
    """ValueError for a table that is out of all proportion to its file; a damaged file makes its reader raise whatever
    its bytes lead it to."""
    _check_sizes(path)
    return pd.read_parquet(path)


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
