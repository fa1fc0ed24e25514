"""On which device an attack computes, and how parameters get there without touching the caller's."""

import contextlib
import gc
import sys
from collections.abc import Iterator

import torch

from attacks.interface.errors import InputError
from attacks.interface.observation import State


def choose_device(device: str) -> torch.device:
    """auto: CUDA where there is one. InputError for a device that this machine lacks; another may run the attack."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    there = torch.cuda.device_count()
    if chosen.type == "cuda" and (chosen.index or 0) >= there:
        raise InputError(f"device is {device!r}, this machine has {there} CUDA devices: choose auto or cpu")
    return chosen


@contextlib.contextmanager
def exact_convolutions() -> Iterator[None]:
    """Inside, convolutions on a GPU compute in the float32 that they are given, and alike each time. cuDNN's own choice
    since Ampere is TF32, of 10 bits, a thousandth, where attacks tell images apart by a hundred-thousandth."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield


def require_usable_card() -> None:
    """End this process where what it did before broke its GPU for it, as everything after that would fail: the work
    then goes to another."""
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            sys.exit(f"the GPU was broken for this process before: {error}")


def free_card() -> None:
    """What a process has held of a GPU is free for others, while it waits for more to do."""
    if torch.cuda.is_initialized():
        gc.collect()  # tensors in objects that hold each other
        with contextlib.suppress(RuntimeError):  # broken: the next one finds out
            torch.cuda.empty_cache()


def cast_state(state: State, device: torch.device, dtype: torch.dtype) -> State:
    """Every tensor on `device`, floating-point ones in `dtype`."""
    return {k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in state.items()}
