"""Helpers for torch: devices, optimizers without the compiler, Adam, random streams.

`torch.optim` marks some methods of an optimizer as not to be compiled. The mark imports the compiler: one second of
processor time in every process that takes a step. The optimizers here are `torch.optim`'s with the marks taken off; a
step gives the same bits. Every random stream of fedspill is a generator seeded from what it is for, never a global one.
"""

import contextlib
import gc
import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from attacks.interface.errors import InputError
from attacks.interface.observation import State


def choose_device(device: str) -> torch.device:
    """Choose the device; auto is CUDA where there is one. Raises InputError for a device that this machine lacks."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    there = torch.cuda.device_count()
    if chosen.type == "cuda" and (chosen.index or 0) >= there:
        raise InputError(f"device is {device!r}, this machine has {there} CUDA devices: choose auto or cpu")
    return chosen


@contextlib.contextmanager
def exact_convolutions() -> Iterator[None]:
    """Make convolutions on a GPU deterministic and exact in float32: cuDNN's TF32 is off by a thousandth."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield


@contextlib.contextmanager
def without_subnormals() -> Iterator[None]:
    """Let this thread take subnormal numbers, in float32 those below 1e-38, for zero.

    Processors compute slowly with them, and softplus leaves many behind shut units: `ntk` takes up to three times as
    long (docs/records/benchmarks.md).
    """
    before = not torch.tensor(1e-40).mul(1.0).any()  # torch does not tell
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def require_usable_card() -> None:
    """Exit if earlier work broke the GPU for this process: another process then gets the work."""
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            sys.exit(f"the GPU was broken for this process before: {error}")


def free_card() -> None:
    """Release cached GPU memory while this process is idle."""
    if torch.cuda.is_initialized():
        gc.collect()  # tensors in reference cycles
        with contextlib.suppress(RuntimeError):  # broken GPU: the next task exits
            torch.cuda.empty_cache()


def cast_state(state: State, device: torch.device, dtype: torch.dtype) -> State:
    """Move every tensor to `device`, floating-point ones in `dtype`."""
    return {k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in state.items()}


Kind = TypeVar("Kind", bound=Optimizer)
MARKED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def uncompiled(kind: type[Kind]) -> type[Kind]:
    """Take the decorators off `kind`'s methods. Steps are not differentiable: only `no_grad` has to stay."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in MARKED}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


SGD = uncompiled(torch.optim.SGD)
Adam = uncompiled(torch.optim.Adam)
AdamW = uncompiled(torch.optim.AdamW)
LBFGS = uncompiled(torch.optim.LBFGS)

Schedule = Callable[[float, int], Iterable[float]]
"""(first step size, number of steps) -> the size of every step."""


def half_cosine(rate: float, steps: int) -> Iterator[float]:
    """Lower the step size from `rate` to 0 on a half cosine."""
    for step in range(steps):
        yield rate * (0.5 + 0.5 * math.cos(math.pi * step / steps))


def constant(rate: float, steps: int) -> Iterable[float]:
    """Keep the step size."""
    return repeat(rate, steps)


def descend(
    gradients: Callable[[int], Sequence[Tensor]],
    variables: Sequence[tuple[Tensor, float]],
    steps: int,
    schedule: Schedule = half_cosine,
    betas: tuple[float, float] = (0.9, 0.999),
) -> None:
    """Move variables downhill in place, by Adam.

    gradients: number of the step -> the gradient of every variable where it is now.
    variables: each with its first step size.
    """
    adam = Adam([{"params": [variable], "lr": rate} for variable, rate in variables], betas=betas)
    for step, rates in enumerate(zip(*(schedule(rate, steps) for _, rate in variables), strict=True)):
        found = gradients(step)
        for group, rate, (variable, _), gradient in zip(adam.param_groups, rates, variables, found, strict=True):
            group["lr"], variable.grad = rate, gradient
        adam.step()


def derive_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """Derive a 63-bit seed from (seed, purpose, round, client); distinct inputs give unrelated streams."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{round}/{client}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def torch_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """Make a generator on the CPU: random numbers are drawn there and moved, so that a GPU run draws the same ones."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, round, client))


def numpy_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, purpose, round, client))
