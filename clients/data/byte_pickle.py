"""Reading a pickle that holds nothing but plain containers and numeric arrays, without trusting who wrote it.

Not even numpy's own globals are handed out: stand-ins collect their arguments, and an array is made from its bytes
only after they have been checked.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attacks.interface.errors import InputError
from clients.data.files import one_line

PLAIN = {"set": set, "frozenset": frozenset, "list": list, "dict": dict, "tuple": tuple, "bytes": bytes}


def load_plain_pickle(path: Path) -> Any:
    """The object in the file, with Python 2 strings as bytes. InputError names any other global that it asks for."""
    try:
        return _resolve(_PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load())
    except InputError as error:
        raise InputError(f"{str(path)!r}: {error}") from None
    except Exception as error:  # a damaged or hostile pickle can raise anything
        raise InputError(f"{str(path)!r} could not be read: {type(error).__name__}: {one_line(error)}") from None


class _Dtype:
    """Stands for numpy.dtype: numbers only."""

    def __init__(self, code: str | bytes, *flags: object) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        if text not in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"):
            raise InputError(f"the pickle holds an array of dtype {text!r}: only numbers are read")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order: Any = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Stands for numpy.ndarray; `value` is the real one."""

    value: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, raw = state
        self.value = _from_buffer(raw, dtype, shape, "F" if fortran else "C").value


def _reconstruct(subtype: type, shape: object, code: object) -> _Array:
    return _Array()


def _from_buffer(raw: bytes, dtype: _Dtype, shape: tuple[int, ...], order: Any) -> _Array:
    array = _Array()
    array.value = np.frombuffer(raw, dtype.dtype).reshape(shape, order=order)
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Bytes as Python 3 writes them in protocol 2, and no other codec."""
    if encoding not in ("latin1", b"latin1"):
        raise InputError(f"the pickle asks for the codec {encoding!r}: refused")
    return text.encode("latin1")


def _stand_ins() -> dict[tuple[str, str], Callable[..., Any]]:
    known: dict[tuple[str, str], Callable[..., Any]] = {("_codecs", "encode"): _encode}
    known |= {("numpy", "ndarray"): _Array, ("numpy", "dtype"): _Dtype}
    for core in ("numpy.core", "numpy._core"):
        known |= {
            (f"{core}.multiarray", "_reconstruct"): _reconstruct,
            (f"{core}.numeric", "_frombuffer"): _from_buffer,
        }
    for builtins in ("builtins", "__builtin__"):
        known |= {(builtins, name): kind for name, kind in PLAIN.items()}
    return known


class _PlainUnpickler(pickle.Unpickler):
    known = _stand_ins()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            raise InputError(f"the pickle asks for {module}.{name}: refused, only arrays and containers are read")
        return self.known[module, name]


def _resolve(value: Any) -> Any:
    """Stand-ins replaced by their arrays, in dicts and lists as the official batches have them."""
    if isinstance(value, dict):
        return {key: _resolve(entry) for key, entry in value.items()}
    return value.value if isinstance(value, _Array) else value
