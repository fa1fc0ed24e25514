"""The formats of a run's files: objects as JSON, state dicts as safetensors, what an attack found as npz.

A table of a run directory that may have come by mail: what it would fill is known before memory is asked for it.
"""

import contextlib
import errno
import io
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyarrow import parquet
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from attacks import InputError, Reconstruction
from attacks.interface.observation import State, check_tensor
from clients.data.files import npz_array
from simulator.results.columns import JSON, TEXT, Column, Table
from simulator.results.disk import checksum_of, give_back_memory, replacing, write_atomically


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """JSON has no NaN and no Inf: null stands for them."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}
    write_atomically(path, json.dumps(finite, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """An object that a run wrote; InputError where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{str(path)!r} does not exist: the run directory is not complete") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}): the run directory is damaged") from None
    if not isinstance(content, dict):
        raise InputError(f"{str(path)!r} holds a {type(content).__name__}, no object: the run directory is damaged")
    return content


def save_state(path: Path, state: State) -> str:
    """As safetensors. Returns the checksum. A reader finds the old file or the new one; DiskError where it cannot be
    written, and nothing of it is left."""
    with _written(path, state) as partial:
        return checksum_of(partial)


def archive_state(path: Path, state: State) -> None:
    """As `save_state`, for what is read much later if at all: the system's memory does not hold it, and nobody asks for
    its checksum."""
    with _written(path, state) as partial:
        give_back_memory(partial)


@contextlib.contextmanager
def _written(path: Path, state: State) -> Iterator[Path]:
    """The file of a state dict before it takes its place."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    with replacing(path) as partial:
        try:
            save_file(tensors, partial)
        except SafetensorError as error:
            said = re.search(r"os error (\d+)", str(error))
            number = int(said[1]) if said else errno.EIO
            raise OSError(number, os.strerror(number)) from error
        yield partial


def load_state(path: Path) -> State:
    """A state dict from a safetensors file; pickles are never loaded."""
    try:
        state = load_file(path)
    except FileNotFoundError:
        raise InputError(f"checkpoint {str(path)!r} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"checkpoint {str(path)!r} is no safetensors file ({error})") from None
    for name, tensor in state.items():
        check_tensor(tensor, f"checkpoint {str(path)!r}: tensor {name!r}")
    return state


def reconstruction_file(found: Reconstruction) -> bytes:
    """An npz file. images: (M, C, H, W) pixels in [0, 1], best first; held: (H, C, H, W), the candidates that the
    attack would not vouch for; residual: (M,); duals, groups (M,) of views of one image, and features (F, …), where
    there are any."""
    pixels, held = (images.numpy().astype(np.float32) for images in (found.pixels(), found.held_pixels()))
    arrays: dict[str, Any] = {"images": pixels, "held": held, "residual": found.residual.numpy()}
    if found.duals is not None:
        arrays["duals"] = found.duals.numpy()
    if found.groups is not None:
        arrays["groups"] = found.groups.numpy()
    if found.features is not None:
        arrays["features"] = found.features.numpy()
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def load_images(path: Path) -> Tensor:
    """Reconstructed images in [0, 1], (M, C, H, W)."""
    images = npz_array(path, "images", "reconstructions")
    if images.ndim != 4 or images.dtype.kind != "f":
        raise InputError(f"reconstructions {str(path)!r} are {images.dtype} {images.shape}: (M, C, H, W) is expected")
    return torch.from_numpy(images.astype(np.float32))


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
