"""Read and write the files of a run: objects as JSON, state dicts as safetensors, reconstructions as npz.

Readers check what they read: a run directory may come by mail. `simulator.rundir.run` reads tables with pandas, without
which attack workers start 0.2 s sooner.
"""

import errno
import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from attacks import InputError, Reconstruction
from attacks.interface.observation import State
from clients.config import first_fault
from clients.data.files import npz_array
from simulator.results.disk import checksum_of, drop_from_page_cache, replacing, write_atomically

Model = TypeVar("Model", bound=BaseModel)


def json_text(facts: dict[str, Any]) -> str:
    """Return plain values as JSON, with null for NaN and Inf."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}
    return json.dumps(finite, indent=1, ensure_ascii=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read an object that a run wrote; raise InputError if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{str(path)!r} does not exist: the run directory is not complete") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}): the run directory is damaged") from None
    if not isinstance(content, dict):
        raise InputError(f"{str(path)!r} holds a {type(content).__name__}, no object: the run directory is damaged")
    return content


def write_model(path: Path, content: BaseModel) -> str:
    """Write a pydantic model as JSON; return the checksum of the file."""
    return write_atomically(path, content.model_dump_json(indent=1))


def read_model(path: Path, model: type[Model]) -> Model:
    """Read what `write_model` wrote; raise InputError that names the file and the field that is wrong."""
    content = read_json(path)
    try:
        return model.model_validate_json(json.dumps(content))
    except ValidationError as error:
        wrong = first_fault(error)
        where = ".".join(map(str, wrong["loc"]))
        raise InputError(f"{str(path)!r} is damaged: {where}: {wrong['msg'].lower()}") from None


def save_state(path: Path, state: State, archive: bool = False) -> str:
    """Write a state dict as safetensors; return the checksum of the file. A reader finds the old file or the new one.
    Raise DiskError, and leave nothing of the new file, if it cannot be written.

    archive: skip the checksum (return "") and drop the file from the page cache. `Record` then takes 2.4 % of the
    processor time of a round; 5.3 % if it only skips the checksum, 6.4 % with neither (tests/benchmarks/recording.py).
    """
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    with replacing(path) as partial:
        try:
            save_file(tensors, partial)
        except SafetensorError as error:
            said = re.search(r"os error (\d+)", str(error))
            number = int(said[1]) if said else errno.EIO
            raise OSError(number, os.strerror(number)) from error
        if not archive:
            return checksum_of(partial)
        drop_from_page_cache(partial)
        return ""


def reconstruction_file(found: Reconstruction) -> bytes:
    """Return the content of an npz file. images: (M, C, H, W), pixels in [0, 1], best first; held: (H, C, H, W), those
    that the attack held back; residual: (M,). If there are any: duals; features; groups: (M,), equal for views of one
    image."""
    pixels, held = (images.numpy().astype(np.float32) for images in (found.pixels(), found.held_pixels()))
    arrays: dict[str, Any] = {"images": pixels, "held": held, "residual": found.residual.numpy()}
    more = {"duals": found.duals, "groups": found.groups, "features": found.features}
    arrays |= {name: values.numpy() for name, values in more.items() if values is not None}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def load_images(path: Path) -> Tensor:
    """Load reconstructed images in [0, 1], (M, C, H, W)."""
    images = npz_array(path, "images", "reconstructions")
    if images.ndim != 4 or images.dtype.kind != "f":
        raise InputError(f"reconstructions {str(path)!r} are {images.dtype} {images.shape}: (M, C, H, W) is expected")
    return torch.from_numpy(images.astype(np.float32))
