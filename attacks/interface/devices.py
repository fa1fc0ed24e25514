"""On which device an attack computes, and how parameters get there without touching the caller's."""

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


def cast_state(state: State, device: torch.device, dtype: torch.dtype) -> State:
    """Every tensor on `device`, floating-point ones in `dtype`."""
    return {k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in state.items()}
