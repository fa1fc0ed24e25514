"""Read the tables of a run. Nothing of what a file says is taken for granted: a run directory may come by mail."""

import json
from pathlib import Path

import pandas as pd
from pyarrow import parquet

from clients.data.bounds import check_unpacked
from simulator.results.columns import JSON, TEXT, Column, Table

VALUE = 64  # bytes that a value of a table takes in memory, a text among them
NAMED = ("round", "client", "threat_model", "attack", "status")  # that every row has, where its table has them


def read_table(path: Path, table: Table) -> pd.DataFrame:
    """Read a parquet file. Raise ValueError for a table that no run writes, or whose number of values is out of all
    proportion to its file; a damaged file makes its reader raise whatever its bytes lead it to."""
    told = parquet.read_metadata(path)
    check_unpacked(VALUE * told.num_rows * told.num_columns, path.stat().st_size)
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


def _is_json(text: str) -> bool:
    """Whether it is an object, or a list of objects; "" stands for none."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return False
    return all(isinstance(part, dict) for part in (content if isinstance(content, list) else [content]))
