"""Checkpoints that are whole, of tensors that nothing can be computed with, or that claim more than they have."""

import functools
import io
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

TYPES = (
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.complex64, torch.int8, torch.int64, torch.uint16),
    *(torch.float16, torch.bfloat16, torch.float64),
)
LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (
    Tensor.to_sparse,
    lambda tensor: tensor.reshape(len(tensor), -1).to_sparse_csr(),
    lambda tensor: tensor.to("meta"),
    lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
    lambda tensor: tensor.flatten()[:1].expand(tensor.shape),
    lambda tensor: torch.zeros(1).expand(10**6, 10**6),
    lambda tensor: torch.empty(10**6, 10**6, device="meta"),
    lambda tensor: tensor.mT if tensor.ndim > 1 else tensor[:0],
    lambda tensor: torch.nested.nested_tensor([tensor.flatten(), tensor.flatten()[:1]]),
)
ARRAYS = ("<f2", "<f8", "<c8", "?", "<i8", "<u2", "<U3", "S3", "<M8[s]", "V4", "<f16", ">f4")  # types of numpy


def of_odd_tensors(path: Path, content: bytes, rng: random.Random) -> bytes:
    """A file of the same format, of which one to three tensors are of another type or layout, or are added."""
    if path.suffix == ".safetensors":
        return save(with_odd(load(content), rng, lambda tensor: tensor.to(rng.choice(TYPES))))
    if path.suffix == ".npz":
        return with_members(content, rng)
    found = torch.load(io.BytesIO(content), weights_only=True)
    state = found.get("state_dict", found)
    odd = [lambda tensor: tensor.to(rng.choice(TYPES)), *LAYOUTS, *LAYOUTS]
    # of numbers too, which BatchNorm counts in: layouts want a dimension, and floats
    changed: object = with_odd(state, rng, lambda tensor: rng.choice(odd)(torch.atleast_1d(tensor).float()))
    if rng.random() < 0.2:
        changed = list(changed.values()) * rng.choice([1, 1, 1000]) if isinstance(changed, dict) else changed
    file = io.BytesIO()
    torch.save(changed, file, _use_new_zipfile_serialization=rng.random() < 0.7)
    return file.getvalue()


def with_odd(state: Mapping[str, Tensor], rng: random.Random, odd: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    changed = dict(state)
    for _ in range(rng.choice([1, 1, 3])):
        name = rng.choice(sorted(changed))
        changed[name if rng.random() < 0.7 else f"{name}.more"] = odd(state.get(name, torch.ones(2, 2)))
    return changed


def with_members(content: bytes, rng: random.Random) -> bytes:
    """An archive with more members: arrays of other types, or, now and then, gigabytes in parts of which none is."""
    if rng.random() < 0.1:
        return gigabytes()
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        names = old.namelist()
        replaced = rng.choice(names) if rng.random() < 0.7 else ""
        for name in [*names, *(f"more_{i}.npy" for i in range(rng.choice([0, 1, 40])))]:
            if name in names and name != replaced:
                new.writestr(name, old.read(name))
                continue
            array = io.BytesIO()
            np.save(array, np.zeros(rng.choice([(), (0,), (3,), (5, 1, 8, 8)]), rng.choice(ARRAYS)))
            new.writestr(name, array.getvalue())
    return file.getvalue()


@functools.cache
def gigabytes() -> bytes:
    """Six arrays of 200 MiB each, by every name that a reader may look for, in a megabyte."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("images", "x_train", "y_train", "x_test", "arr_0", "arr_1"):
            with archive.open(f"{name}.npy", "w") as member:
                header = {"descr": "|u1", "fortran_order": False, "shape": (200 * 2**20,)}
                np.lib.format.write_array_header_1_0(member, header)
                for _ in range(200):
                    member.write(bytes(2**20))
    return file.getvalue()
