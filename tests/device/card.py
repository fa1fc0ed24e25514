"""A card that is not there: tensors that say they are on `cuda:0`, compute on the CPU, and keep to CUDA's rules.

torch lets Python register a backend (`PrivateUse1`). Here its tensors are wrappers around CPU tensors, and every
operation, those of autograd, `torch.func` and the factories too, comes by `Rules.run`, which refuses what a GPU would
refuse and notes every operation for which the host and the card wait for each other. `SaysCuda` translates the name:
the code under test writes and reads "cuda", so that its own branches for CUDA are the ones that run.

What it cannot show: kernels of CUDA and their rounding, speed, memory, several cards, autocast, and random numbers
that are drawn on the card (here they come from the CPU's stream).
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.device.fake_cuda import BACKEND, Capture, fake_cuda

_setup_privateuseone_for_python_backend("card", BACKEND)
PROJECT = Path(__file__).resolve().parents[2]
TESTS = str(PROJECT / "tests")  # an environment may lie in the project, too
PRODUCT = tuple(str(PROJECT / package) for package in ("attacks", "clients", "simulator"))
FAKE_CUDA = fake_cuda.__code__.co_filename
CUDA = torch.device("cuda", 0)
aten = torch.ops.aten

SCALARS_FROM_HOST = {aten.masked_fill.Tensor, aten.masked_fill_.Tensor, aten.fill.Tensor, aten.fill_.Tensor}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
COPIES = {aten.copy_.default, aten.copy.default}
WAITING = {
    aten._local_scalar_dense.default,  # .item(), float(), bool(), an index that is a tensor
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.bincount.default,
    aten.histc.default,
    aten.repeat_interleave.Tensor,
    aten._linalg_check_errors.default,  # after svd, eigh, solve, cholesky: did it converge?
}


class MixedDevices(RuntimeError):
    """An operation on tensors of two devices, or a generator of one for a tensor of the other."""


@dataclass(frozen=True)
class Wait:
    """One operation that host and card wait for each other in. kind: upload, download, or the operation that needs to
    know on the host what a tensor holds. place: file and function of the product, and line."""

    kind: str
    place: str
    line: int


@dataclass
class Waits:
    """All of them, in order."""

    seen: list[Wait] = field(default_factory=list)

    def by_place(self) -> Counter[str]:
        return Counter(wait.place for wait in self.seen)


class CardTensor(Tensor):
    """A tensor of the card. host: what it holds, on the CPU."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "CardTensor":
        return Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device="card:0",
        )

    def __init__(self, host: Tensor):
        self.host = host

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["host"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: None, size: object, stride: object) -> "CardTensor":
        return CardTensor(inner["host"])

    def __repr__(self, **_: object) -> str:
        return f"CardTensor({self.host})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} of a tensor of the card, outside `card()`")


class Rules(TorchDispatchMode):
    """Every operation on the card, and every one that makes a tensor there."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.capture = Waits(), None

    capture: Capture | None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensors = tensors_in((args, kwargs))
        cards = [tensor for tensor in tensors if isinstance(tensor, CardTensor)]
        asked = kwargs.get("device")
        there = bool(cards) if asked is None else torch.device(asked).type == "card"
        if not there and not cards:
            return func(*args, **kwargs)
        if asked is not None and there:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if func is aten._to_copy.default:
            if asked is None or torch.device(asked).type != "meta":  # there nothing is copied
                self._note_copy(from_card=bool(cards), to_card=there)
        elif func in COPIES:
            self._note_copy(from_card=isinstance(args[1], CardTensor), to_card=isinstance(args[0], CardTensor))
        else:
            self._check(func, args, kwargs, tensors, cards)
        if func is aten._efficientzerotensor.default:  # its key would be lost inside the wrapper
            func = aten.zeros.default
        return self._compute(func, args, kwargs, there)

    def _compute(self, func: Any, args: Any, kwargs: dict[str, Any], there: bool) -> Any:
        plain_args, plain_kwargs = each(_to_host, args), each(_to_host, kwargs)
        if self.capture is not None:
            found = self.capture.run(func, plain_args, plain_kwargs)
        else:
            found = func(*plain_args, **plain_kwargs)
        if not there or (func in COPIES and not isinstance(args[0], CardTensor)):
            return found if func is not aten.copy_.default else args[0]
        made = each(_to_card, found)
        if all(returned.alias_info is None for returned in func._schema.returns):
            return made
        return return_and_correct_aliasing(func, args, kwargs, made)

    def _check(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], cards: list[CardTensor]) -> None:
        """Refuse what CUDA refuses; note what it waits for."""
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type == "cpu":
            raise MixedDevices(f"{func}: expected a 'cuda' device type for generator but found 'cpu', at {place()[0]}")
        if func is aten.linalg_lstsq.default and kwargs.get("driver") not in (None, "gels"):
            raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")
        if func in WAITING:
            self._note(func.__name__.partition(".")[0])
        if func in INDEXING:
            self._check_index(func, args)
        elif cards and len(cards) < len(tensors):
            written = [arg.alias_info is not None and arg.alias_info.is_write for arg in func._schema.arguments]
            scalar = torch.Tag.pointwise in func.tags or func in SCALARS_FROM_HOST
            hosts = [tensor for tensor in tensors if not isinstance(tensor, CardTensor)]
            host_is_written = any(
                write and isinstance(arg, Tensor) and not isinstance(arg, CardTensor)
                for arg, write in zip(args, written, strict=False)
            )
            if host_is_written or not scalar or any(host.dim() for host in hosts):
                shapes = ", ".join(
                    f"{'cuda:0' if isinstance(t, CardTensor) else 'cpu'} {tuple(t.shape)}" for t in tensors
                )
                raise MixedDevices(f"{func}: expected all tensors on one device, found {shapes}, at {place()[0]}")

    def _check_index(self, func: Any, args: Any) -> None:
        """Indices may come from the host, which is an upload; a mask is counted before it is used."""
        itself, indices = args[0], [index for index in args[1] if index is not None]
        values = args[2] if len(args) > 2 else None
        here = isinstance(itself, CardTensor)
        if not here and any(isinstance(index, CardTensor) for index in indices):
            raise MixedDevices(f"{func}: indices on cuda:0 of a tensor on cpu, at {place()[0]}")
        if values is not None and isinstance(values, CardTensor) != here and (values.dim() or not here):
            raise MixedDevices(f"{func}: values and tensor are on two devices, at {place()[0]}")
        for index in indices:
            if index.dtype in (torch.bool, torch.uint8):
                self._note("mask")
            if not isinstance(index, CardTensor):
                self._note("upload")

    def _note_copy(self, from_card: bool, to_card: bool) -> None:
        if from_card != to_card:
            self._note("upload" if to_card else "download")

    def _note(self, kind: str) -> None:
        where, line = place()
        self.waits.seen.append(Wait(kind, where, line))
        if self.capture is not None:
            raise RuntimeError(f"{kind} at {where}, line {line}: not permitted when the stream is capturing")


class SaysCuda(TorchFunctionMode):
    """The card is called cuda in everything that is written and read."""

    def __init__(self) -> None:
        super().__init__()
        self.getters = {Tensor.device.__get__: CUDA, Tensor.is_cuda.__get__: True}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.getters:
            device = Tensor.device.__get__(args[0])
            return self.getters[func] if device.type == "card" else func(*args)
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is Tensor.tolist and isinstance(args[0], CardTensor):  # torch refuses it, and the next two, of wrappers
            return args[0].cpu().tolist()
        if func in (Tensor.numpy, Tensor.__array__) and isinstance(args[0], CardTensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if func is Tensor.__setitem__ and isinstance(args[0], CardTensor) and isinstance(args[2], (bool, int, float)):
            args = (*args[:2], torch.tensor(args[2], dtype=args[0].dtype))  # as CUDA does: a copy from the host
        return func(*map(_on_the_card, args), **{name: _on_the_card(value) for name, value in (kwargs or {}).items()})


def each(change: Callable[[Any], Any], given: Any) -> Any:
    """The same lists, tuples and dicts with every leaf changed; torch's own `tree_map` takes ten times as long."""
    if isinstance(given, (list, tuple)):
        return type(given)([each(change, part) for part in given])
    if isinstance(given, dict):
        return {name: each(change, part) for name, part in given.items()}
    return change(given)


def tensors_in(given: Any) -> list[Tensor]:
    found: list[Tensor] = []
    each(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, given)
    return found


def _to_host(leaf: object) -> object:
    return leaf.host if isinstance(leaf, CardTensor) else leaf


def _to_card(leaf: object) -> object:
    return CardTensor(leaf) if isinstance(leaf, Tensor) else leaf


def _on_the_card(leaf: object) -> object:
    if isinstance(leaf, torch.device) and leaf.type == "cuda":
        return torch.device("card", leaf.index or 0)
    return torch.device("card", 0) if isinstance(leaf, str) and leaf in ("cuda", "cuda:0") else leaf


def place() -> tuple[str, int]:
    """(file:function, line) of the product's code that is running; of a test's where there is none."""
    frame, outside = sys._getframe(1), ("?", 0)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PRODUCT):
            return f"{Path(path).relative_to(PROJECT).as_posix()}:{frame.f_code.co_name}", frame.f_lineno
        if outside[0] == "?" and path.startswith(TESTS) and path not in (__file__, FAKE_CUDA):
            outside = f"{Path(path).name}:{frame.f_code.co_name}", frame.f_lineno
        frame = frame.f_back
    return outside


@contextlib.contextmanager
def card() -> Iterator[Waits]:
    """Within it, torch has one CUDA device."""
    rules, lift_cpu_only = Rules(), torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=cuda) is made on the host, and then moved
    # the engine's threads are started with the devices that there were at the first backward pass of the process
    try:
        with (
            torch.autograd.set_multithreading_enabled(False),
            mock.patch.multiple(torch.cuda, **fake_cuda(rules)),
            SaysCuda(),
            rules,
        ):
            yield rules.waits
    finally:
        torch._C._set_only_lift_cpu_tensors(lift_cpu_only)
