"""Read any checkpoint that people have as a state dict, and load it into a network: safetensors, PyTorch files, npz.

The first bytes of a file tell its format, not its name. Nothing is downloaded, and no code in a file is run.
"""

import itertools
import math
import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from attacks.interface.errors import InputError, one_line
from attacks.interface.observation import ADAPTER, COMPILED, PARALLEL, State, check_tensor, with_adapter_names
from clients.batch_norm import STATISTICS
from clients.data.files import check_unpacked, is_bomb, members, npz_fields

# where training scripts put a state dict
NESTED = ("state_dict", "model_state_dict", "model", "net", "module", "weights", "params")
REMEDY = "give safetensors, a .pt or .pth file with model.state_dict(), or an npz file"


def read_checkpoint(path: str | Path, like: Mapping[str, Tensor] | None = None, called: str = "checkpoint") -> State:
    """Read the tensors of a file, by the names of the model.

    like: the model's state dict, for files with other names: behind a prefix, or a list of arrays in the order of
    `state_dict()` or of `parameters()`. Without it the arrays of a list are named "0", "1", … called: the file's name
    in errors. Raise InputError, with the remedy, for a file that is missing, damaged or no checkpoint, for a list of
    another length, and for a useless tensor (`check_tensor`).
    """
    path, thing = Path(path), f"{called} {str(path)!r}"
    if not os.path.exists(path):  # unlike Path.exists, of a name too long for the disk too
        raise InputError(f"{thing} does not exist: {REMEDY}")
    if path.is_dir():
        raise InputError(f"{thing} is no safetensors file but a folder: {REMEDY}")
    try:
        content = _read(path)
        _check_views(content, path.stat().st_size)
    except InputError as error:
        raise InputError(f"{thing} {error}") from None
    except Exception as error:  # the reader of a damaged file may raise anything
        reason = one_line(f"{type(error).__name__}: {error}", most=120)
        raise InputError(f"{thing} cannot be read, it is damaged or no safetensors file ({reason}): {REMEDY}") from None
    arrays = _numbered(content)
    state = _with_names_of(content, like) if arrays is None else _in_order(arrays, like, thing)
    for name, tensor in state.items():
        check_tensor(tensor, f"{thing}: tensor {name!r}", (like or {}).get(name))
    return state


def _read(path: Path) -> State:
    """Read a file by its content. Raise InputError, without the name of the file, if it holds no checkpoint."""
    with path.open("rb") as file:
        head = file.read(16)
    if head[8:9] == b"{":  # after the length of the header, in eight bytes
        return load_file(path)
    if head.startswith(b"PK"):
        with zipfile.ZipFile(path) as archive:
            check_unpacked(sum(info.file_size for info in archive.infolist()), path.stat().st_size)
            if all(name.endswith(".npy") for name in archive.namelist()):
                arrays = members(path, npz_fields(path), scalars=True)
                return {name: torch.from_numpy(array) for name, array in arrays.items()}
    elif head[:1] != b"\x80":  # of a pickle
        raise InputError(f"is no safetensors file, no PyTorch file and no npz file: {REMEDY}")
    return _state_in(_unpickle(path))


def _check_views(state: State, size: int) -> None:
    """Raise InputError if tensors share bytes so often that copies would take gigabytes. size: of the file."""
    bytes_of = {name: math.prod(tensor.shape) * tensor.element_size() for name, tensor in state.items()}
    if is_bomb(sum(bytes_of.values()), size):
        largest = max(bytes_of, key=bytes_of.__getitem__)
        raise InputError(
            f"has {size:,} bytes, and tensors of {sum(bytes_of.values()):,}: {largest!r} has the shape "
            f"{tuple(state[largest].shape)}; save copies of expanded tensors"
        )


def _unpickle(path: Path) -> object:
    """Load a PyTorch file of tensors alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, on layouts and types that `check_tensor` refuses later
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        text = one_line(error, most=len(str(error)))
        if "weights_only" not in text.lower() and "weights only" not in text.lower():
            raise
        found = re.search(r"(?:GLOBAL|global|class) `?([\w.]+)", text)
        beside = f", it has {found[1]}" if found else ""
        raise InputError(
            f"is no file of tensors alone{beside}, which could run code: save model.state_dict() instead, "
            "or lists of arrays by np.savez(file, *arrays)"
        ) from None


def _state_in(content: object) -> State:
    """Return the state dict in a file's content, which may be nested under a usual name."""
    if isinstance(content, Sequence) and content and all(isinstance(value, Tensor) for value in content):
        return {str(i): value for i, value in enumerate(content)}
    if not isinstance(content, Mapping):
        raise InputError(f"is no state dict but a {type(content).__name__}: save model.state_dict()")
    for name in NESTED:
        if isinstance(content.get(name), Mapping):
            return _state_in(content[name])
    tensors = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        keys = ", ".join(map(str, list(content)[:6])) or "nothing"
        raise InputError(f"is no state dict, it has {keys}: save model.state_dict()")
    return tensors


def _numbered(state: State) -> list[Tensor] | None:
    """Return the arrays in the order of their names, if these are numbers, as of a list; else None."""
    numbers = {name: re.fullmatch(r"(?:arr_)?(\d+)", name) for name in state}
    if not state or not all(numbers.values()):
        return None
    return [state[name] for name in sorted(state, key=lambda name: int(name.removeprefix("arr_")))]


def _in_order(arrays: Sequence[Tensor], like: Mapping[str, Tensor] | None, thing: str) -> State:
    """Name a list of arrays by a model's state dict, or by its parameters, with or without BatchNorm's, or adapters if
    their number fits."""
    if like is None:
        return {str(i): array for i, array in enumerate(arrays)}
    parameters = [name for name in like if name.rpartition(".")[2] not in STATISTICS]
    shared = [name for name in parameters if f"{name.rpartition('.')[0]}.running_mean" not in like]  # FedBN's
    for names in (list(like), parameters, shared, [name for name in like if ADAPTER.search(name)]):
        if len(names) == len(arrays):
            return dict(zip(names, arrays, strict=True))
    raise InputError(
        f"{thing} is a list of {len(arrays)} arrays, the model has {len(like)} ({', '.join(list(like)[:4])}, …): "
        "save the values of model.state_dict(), in that order; where clients keep layers, name a model of the others"
    )


def _with_names_of(state: State, like: Mapping[str, Tensor] | None) -> State:
    """Rename tensors as in the model: without the prefixes of wrappers, or one that the model does not have."""
    if like is not None and set(like) <= set(state):
        return state
    state = {".".join(part for part in name.split(".") if part != COMPILED): value for name, value in state.items()}
    while _all_begin_with(PARALLEL, state) and not (like is not None and _all_begin_with(PARALLEL, like)):
        state = {name.partition(".")[2]: value for name, value in state.items()}
    if like is None:
        return state
    state = with_adapter_names(state, like)
    if set(like) & set(state):
        return state
    parts: dict[str, State] = {}
    for name, tensor in state.items():
        first, _, rest = name.partition(".")
        parts.setdefault(first, {})[rest] = tensor
    inner = [part for part in parts.values() if set(like) & set(part)]  # of others, as a loss with weights, it has none
    return inner[0] if len(inner) == 1 else state


def _all_begin_with(prefix: str, names: Iterable[str]) -> bool:
    return all(name.startswith(f"{prefix}.") for name in names)


def load_checkpoint(model: nn.Module, path: str | Path, replace_head: bool = False) -> None:
    """Load any checkpoint into `model`, or all but its head (`find_head`); raise InputError if they do not fit."""
    state = read_checkpoint(path, model.state_dict(), called="model.checkpoint")
    try:
        load_weights(model, state, replace_head)
    except RuntimeError as error:
        advice = "" if replace_head else "; model.replace_head leaves out a last layer of other classes"
        raise InputError(f"model.checkpoint {str(path)!r} does not fit the model: {one_line(error)}{advice}") from None


def load_weights(model: nn.Module, state: Mapping[str, Tensor], replace_head: bool = False) -> None:
    """Call `load_state_dict`, without the head if that is to be replaced; raise its RuntimeError."""
    if replace_head:
        head = f"{find_head(model)}."
        own = {name: value for name, value in model.state_dict().items() if name.startswith(head)}
        state = {name: value for name, value in state.items() if not name.startswith(head)} | own
    model.load_state_dict(state)


def find_head(model: nn.Module) -> str:
    """Return the name of the last linear layer, or of the module around it if that has linear layers alone. Raise
    InputError if there is none."""
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not linear:
        raise InputError("model.replace_head: the model has no linear layer to replace")
    last = [name for name, module in model.named_modules() if name in linear][-1]
    for path in itertools.accumulate(last.split("."), "{}.{}".format):
        inside = model.get_submodule(path).named_parameters(prefix=path)
        if all(name.rpartition(".")[0] in linear for name, _ in inside):
            break
    return path
