"""Read and write files of a run directory safely: objects as JSON, state dicts as safetensors, reconstructions as npz.

Readers stay inside the directory, and check what they read: it may come by mail and name files elsewhere. One process
writes at a time. A file is there as a whole or not at all, its checksum is known, and if the disk refuses it, the error
is one line. `simulator.rundir.run` reads tables with pandas, without which attack workers start 0.2 s sooner.
"""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from filelock import BaseFileLock, FileLock, Timeout
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from attacks import Reconstruction
from attacks.interface.errors import InputError, one_line
from attacks.interface.observation import State
from clients.config import first_fault
from clients.data.files import npz_array
from simulator.run_errors import DiskError, RunError


def inside(folder: Path, path: Path) -> Path:
    """Check that `path` is a file inside `folder`, or nothing yet, and return it.

    Raise InputError if it leaves the folder, by its name or by a link, or if it is no regular file: /dev/zero has no
    end, and a pipe waits for somebody who writes.
    """
    path = below(folder, path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{str(path)!r} is no file: the run directory is damaged")
    return path


def below(folder: Path, path: Path) -> Path:
    """Check that `path` lies inside `folder`, whatever it is, and return it. Raise InputError if it does not."""
    try:
        leaves = ".." in path.relative_to(folder).parts
        leaves = leaves or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except ValueError:  # an absolute path, or one with a zero byte
        leaves = True
    if leaves:
        raise InputError(f"{str(path)[:300]!r} leads out of {str(folder)!r}: a run directory has to hold all its files")
    return path


LOCK = ".lock"


def acquired(folder: Path, occupied: str) -> BaseFileLock:
    """Acquire the lock of a folder and return it. Raise RunError(`occupied`) if another process holds it."""
    lock = FileLock(folder / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise RunError(occupied) from None
    return lock


def is_occupied(folder: Path) -> bool:
    """Return whether somebody holds the lock of a folder, this process included. Write nothing."""
    if (folder / LOCK).exists():
        try:
            acquired(folder, "").release()
        except RunError:
            return True
        except OSError:  # the folder cannot be written: whoever tries to says why
            return False
    return False


BLOCK = 2**22  # bytes that are read at a time
LARGE = 2**20  # bytes of a file that is worth dropping from the page cache


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside, as of a full disk or a read-only folder, into a DiskError of one line about `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise DiskError(
            f"{str(path)!r} cannot be written ({reason}): what was written before is kept; make room, or make the "
            "folder writable, and give the same command again"
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path to write the new content of `path` to: a reader finds the old file or the new one, never half.

    Raise DiskError if that does not work; nothing of the new file is left then.
    """
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        try:
            partial.unlink(missing_ok=True)  # a link would be followed, to wherever it leads
            yield partial
            os.replace(partial, path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> str:
    """Replace a file as `replacing` does. Return the CRC-32 of its content, as eight hexadecimal digits; it guards
    against accidents, not against an enemy, who could forge it."""
    with replacing(path) as partial:
        partial.write_bytes(content)
    return f"{zlib.crc32(content):08x}"


def drop_from_page_cache(path: Path) -> None:
    """Flush a large file to the disk and drop it from the page cache, so that the next write finds free pages. Raise
    OSError if the disk does not take it."""
    if path.stat().st_size < LARGE:
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # Linux
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write_atomically(path: Path, text: str) -> str:
    """Replace a file by a text, in UTF-8; return its checksum."""
    return write_bytes(path, text.encode())


def checksum_of(path: Path) -> str:
    """Return the checksum of a file, which need not fit into memory."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def contents_digest(path: Path) -> str:
    """Return the SHA-256 of a file, which need not fit into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_changed(path: Path, expected: str) -> bool:
    """Return whether a file was cut off or changed. False for a missing one: people delete checkpoints once they have
    seen the tables."""
    try:
        return checksum_of(path) != expected
    except FileNotFoundError:
        return False
    except OSError:
        return True


def check_out(path: Path) -> None:
    """Raise InputError if no folder can be made at `path`. Make none yet: later checks may still find bad input."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # the parents are looked at below
    except (OSError, ValueError) as error:  # too long, a circle of links, a zero byte
        raise InputError(
            f"{str(path)[:100]!r} is no path ({getattr(error, 'strerror', error)}): choose another --out"
        ) from None
    there = next(part for part in (path.absolute(), *path.absolute().parents) if os.path.lexists(part))
    if not there.is_dir():
        raise InputError(f"{str(there)!r} is a file: choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{str(there)!r} cannot be written: choose another --out")


def make_out(path: Path) -> None:
    """Make a folder that is not there yet; raise InputError if that does not work."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {str(path)!r} cannot be made ({error.strerror}): choose another --out") from None


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


def load_images(path: Path, name: str = "images") -> Tensor:
    """Load reconstructed images in [0, 1], (M, C, H, W). name: `held` for those that the attack held back."""
    images = npz_array(path, name, "reconstructions")
    if images.ndim != 4 or images.dtype.kind != "f":
        raise InputError(f"reconstructions {str(path)!r} are {images.dtype} {images.shape}: (M, C, H, W) is expected")
    return torch.from_numpy(images.astype(np.float32))
