"""What the adversary holds: checkpoints and the architecture they belong to, never private images or labels."""

import copy
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, cycle
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from attacks.interface.errors import InputError, counted

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LEAST_KEPT = 0.1  # share of a checkpoint that training leaves in the one returned, by their product
SHORTER = 0.5  # times as long as a checkpoint are its differences and gradients
WAYS = ("sent", "returned")  # the checkpoints of a pair
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def check_tensor(tensor: Tensor, called: str, like: Tensor | None = None) -> None:
    """Raise InputError for a tensor that has no values, is not dense, or has a type that does not fit.

    called: its name in the error.
    like: the model's own tensor of this name; its values are not read. If it is of floating-point type, integers do not
        fit. If it counts, as num_batches_tracked does, integers and floats (means of them) both fit.
    """
    accepted = FLOATS if like is not None and like.is_floating_point() else (*FLOATS, *INTEGERS)
    own = like is not None and tensor.dtype == like.dtype
    if tensor.is_meta:
        found = "on the device 'meta', where tensors have no values"
    elif tensor.layout != torch.strided or tensor.is_nested:
        found = f"of the layout {'nested' if tensor.is_nested else str(tensor.layout).removeprefix('torch.')}"
    elif tensor.dtype not in accepted and not own:
        found = f"of the type {str(tensor.dtype).removeprefix('torch.')}"
    else:
        return
    wanted = "float16, bfloat16, float32 or float64" + ", or integers" * (len(accepted) > len(FLOATS))
    raise InputError(f"{called} is {found}: save dense tensors of {wanted}")


State = dict[str, Tensor]

ALL = -1  # `client` of the union of a round's clients, here, in tables, in files and on the command line


def owner(client: int, union: str = "all clients") -> str:
    """Say whose update it is. union: the name of all clients of a round together."""
    return union if client == ALL else f"client {client}"


def trained_names(model: nn.Module) -> tuple[str, ...]:
    """Name the parameters that training moves: those with `requires_grad`."""
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def left_with_client(model: nn.Module, states: Iterable[Collection[str]]) -> list[str]:
    """Name the parameters of BatchNorm that training moves and that checkpoints lack, as clients of FedBN keep them."""
    lacking = [name for name in trained_names(model) if not all(name in state for state in states)]
    return [name for name in lacking if isinstance(model.get_submodule(name.rpartition(".")[0]), _BatchNorm)]


PARALLEL, COMPILED = "module", "_orig_mod"  # what DataParallel and torch.compile put before the names of a model
WRAPPERS = {"DataParallel": PARALLEL, "DistributedDataParallel": PARALLEL, "OptimizedModule": COMPILED}


def unwrapped(model: nn.Module) -> tuple[nn.Module, str]:
    """Return (the network inside wrappers that add no parameters or hooks, their prefix)."""
    prefix = ""
    while (inside := WRAPPERS.get(type(model).__name__)) and hasattr(model, inside):
        model, prefix = getattr(model, inside), f"{prefix}{inside}."
    return model, prefix


ADAPTER = re.compile(r"(\.modules_to_save)?\.default(?=\.)")


def with_adapter_names(state: State, names: Collection[str]) -> State:
    """Name the tensors of adapters as a model does whose parameters have these names: files of PEFT leave out the name
    of the adapter, "default"."""
    whole = {ADAPTER.sub("", name): name for name in names if ADAPTER.search(name)}
    if not whole:
        return state
    return {name if name in names else whole.get(name, name): tensor for name, tensor in state.items()}


@dataclass(frozen=True)
class Observation:
    """Checkpoints as the adversary saw them, with the architecture they belong to.

    model: the architecture. Its own parameter values are never read; `requires_grad` says what the client trained.
    pairs: (initial, final) state dicts; one pair for a single round, several for a client seen over time.
    input_shape: (C, H, W) of the model's input.
    client: partition id, or `ALL` for the union of a round's clients.
    """

    model: nn.Module
    pairs: tuple[tuple[State, State], ...]
    input_shape: tuple[int, int, int]
    round: int = 1
    client: int = ALL
    threat_model: str = "server"
    kept: ClassVar[tuple[str, ...]] = ()
    """Parameters of BatchNorm that checkpoints lack, frozen in a copy of the model, and its statistics that those sent
    lack."""

    def __post_init__(self) -> None:
        model, prefix = unwrapped(self.model)
        expected = model.state_dict()
        if any(isinstance(pair, Mapping) for pair in self.pairs):
            raise InputError(
                "pairs has a pair (sent, returned) for each round: for one round, pairs=((sent, returned),)"
            )
        named = tuple((_named(first, prefix, expected), _named(last, prefix, expected)) for first, last in self.pairs)
        model, kept = _without_kept(model, named)
        object.__setattr__(self, "kept", kept)
        object.__setattr__(self, "model", model)
        self._take(tuple(_completed(*pair, expected.keys() - {*self.trainable}, expected) for pair in named))
        if not self.trainable:
            raise InputError(f"model {type(self.model).__name__!r} has no trainable parameter: nothing to attack")
        for state, way in zip(chain(*self.pairs), cycle(WAYS), strict=False):
            for name, tensor in state.items():
                check_tensor(tensor, f"checkpoint tensor {name!r}", expected.get(name))
            for name in self.trainable:
                if name not in state:
                    has = ", ".join(map(repr, [*state][:3])) or "none at all"
                    raise InputError(
                        f"checkpoint has no tensor {name!r}, but {has}: use the model the checkpoint was made with; "
                        "where clients keep layers, one of the others"
                    )
                if state[name].shape != expected[name].shape:
                    raise InputError(
                        f"tensor {name!r} of the checkpoint {way} has shape {tuple(state[name].shape)}, the model "
                        f"wants {tuple(expected[name].shape)}: use the model the checkpoint was made with; where "
                        "clients make a head anew, one without it"
                    )
                if not torch.isfinite(state[name]).all():
                    raise InputError(f"tensor {name!r} of the checkpoint {way} holds NaN or Inf: training diverged")
        for first, last in self.pairs:
            _check_no_difference((first[name].detach(), last[name].detach()) for name in self.trainable)
        self._take(tuple((_laid_out(first, expected), _laid_out(last, expected)) for first, last in self.pairs))

    def _take(self, pairs: tuple[tuple[State, State], ...]) -> None:
        """Replace the pairs if a checkpoint is another one."""
        if any(new is not old for new, old in zip(chain(*pairs), chain(*self.pairs), strict=True)):
            object.__setattr__(self, "pairs", pairs)

    def __repr__(self) -> str:
        sizes = [self.model.get_parameter(name).numel() for name in self.trainable]
        network = f"{type(self.model).__name__} with {sum(sizes):,} trained parameters in {len(sizes)} tensors"
        shape = " × ".join(map(str, self.input_shape))
        pairs = f"{counted(len(self.pairs), 'pair')} of checkpoints"
        seen = f"round {self.round}, {owner(self.client)}, {self.threat_model}"
        return f"Observation({pairs} of a {network}, inputs {shape}; {seen})"

    @property
    def initial(self) -> State:
        return self.pairs[0][0]

    @property
    def final(self) -> State:
        return self.pairs[-1][1]

    @cached_property
    def trainable(self) -> tuple[str, ...]:
        """Names of the parameters that the client trained."""
        return trained_names(self.model)

    @property
    def unmoved(self) -> tuple[str, ...]:
        """Names of the parameters that the client is said to have trained, and that no update moved."""
        return tuple(
            name for name in self.trainable if all(torch.equal(first[name], last[name]) for first, last in self.pairs)
        )

    @cached_property
    def moved(self) -> frozenset[str]:
        """Names of the parameters that an update moved; all that the client trained where none did."""
        return frozenset(self.trainable).difference(self.unmoved) or frozenset(self.trainable)

    @property
    def adapter_rank(self) -> int | None:
        """The largest rank of the trained adapters that are named after LoRA; None if there is none."""
        adapters = [self.model.get_parameter(name) for name in self.trainable if "lora" in name.lower()]
        return max((min(adapter.flatten(1).shape) for adapter in adapters if adapter.dim() > 1), default=None)

    def with_own_model(self, device: torch.device) -> "Observation":
        """Copy the network to `device`, in evaluation mode; the caller's stays as it is."""
        return replace(self, model=_copy(self.model).to(device).eval())

    def on(self, device: torch.device) -> "Observation":
        """Copy checkpoints and network to `device`, the network in evaluation mode."""
        there = tuple(
            ({k: v.to(device) for k, v in initial.items()}, {k: v.to(device) for k, v in final.items()})
            for initial, final in self.pairs
        )
        return replace(self.with_own_model(device), pairs=there)

    def delta(self, pair: int = 0) -> State:
        """Return Δθ = θ_f − θ₀ of one pair, of trained parameters only, in float64: the subtraction is then exact."""
        initial, final = self.pairs[pair]
        return {name: final[name].double() - initial[name].double() for name in self.trainable}

    @cached_property
    def _moving(self) -> tuple[int, ...]:
        """Indices of the pairs whose update is not zero. Raises InputError if all are zero."""
        moving = self.pairs_that_move(self.trainable)
        if not moving:
            raise InputError("the update is zero: the client returned the checkpoint it was sent")
        return moving

    def pairs_that_move(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the indices of the pairs whose two checkpoints differ in one of these parameters."""
        pairs = enumerate(self.pairs)
        return tuple(i for i, (sent, back) in pairs if not all(torch.equal(sent[name], back[name]) for name in names))

    def without_zero_updates(self) -> "Observation":
        """Leave out the pairs whose update is zero. Raises InputError if all are zero."""
        if len(self._moving) == len(self.pairs):
            return self
        return replace(self, pairs=tuple(self.pairs[i] for i in self._moving))

    def one_round(self) -> tuple["Observation", tuple[str, ...]]:
        """Keep the first pair whose update is not zero. Return (the observation of it, a warning if other pairs have
        updates too). Raises InputError if all updates are zero."""
        first, *others = self._moving
        one = replace(self, pairs=(self.pairs[first],))
        return one, (f"only round {first + 1} of {len(self.pairs)} is used",) if others else ()


def _copy(model: nn.Module) -> nn.Module:
    held = tree_leaves([vars(module) for module in model.modules()])
    # of a forward pass, as weights of `weight_norm` are: copies of these are refused where they have a graph
    memo = {id(value): value.detach().clone() for value in held if isinstance(value, Tensor) and not value.is_leaf}
    return copy.deepcopy(model, memo)


def _without_kept(model: nn.Module, pairs: Sequence[tuple[State, State]]) -> tuple[nn.Module, tuple[str, ...]]:
    """Return (the model, or a copy in which BatchNorm's parameters that checkpoints lack are frozen, `kept`)."""
    statistics = [name for name in model.state_dict() if name.endswith(("running_mean", "running_var"))]
    unsent = [name for name in statistics if not all(name in first for first, _ in pairs)]
    if kept := left_with_client(model, list(chain(*pairs))):
        model = _copy(model)
        for name in kept:
            model.get_parameter(name).requires_grad_(False)
    return model, (*kept, *unsent)


def _completed(first: State, last: State, untrained: set[str], own: State) -> tuple[State, State]:
    """Fill in frozen parameters and statistics that checkpoints lack: those of the model, in a reply those sent."""
    if untrained <= first.keys() & last.keys():
        return first, last
    device = next((tensor.device for tensor in first.values()), None)
    first = {name: own[name].to(device) for name in own if name in untrained and name not in first} | first
    return first, {name: first[name] for name in untrained if name not in last} | last


def _named(state: State, prefix: str, model: State) -> State:
    """Name tensors as the model does that is inside wrappers of this prefix."""
    inside = {name.removeprefix(prefix): tensor for name, tensor in state.items()} if prefix else state
    return with_adapter_names(inside, model)


def _check_no_difference(tensors: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Raise InputError if of tensors (sent, returned) the second are a difference of checkpoints or a gradient, which
    are shorter than the first and have little of them: attacks would find nothing in them, and say that nothing was
    shown. Training keeps nearly all of what was sent, and noise, however large, is of other directions."""
    flat = ((sent.flatten().float(), returned.flatten().float()) for sent, returned in tensors)
    products = [(float(sent @ sent), float(sent @ back), float(back @ back)) for sent, back in flat]
    whole, along, back = map(sum, zip(*products, strict=True))
    if along < LEAST_KEPT * whole and 0 < back < (SHORTER * SHORTER) * whole:
        raise InputError(
            f"the checkpoint returned is {(back / whole) ** 0.5:.2g} times as long as the one sent and has "
            f"{along / whole:.2g} of it, as a difference or a gradient has: give parameters, as sent + difference"
        )


def _laid_out(state: State, model: State) -> State:
    """Give each tensor the memory layout of the model's own, on which the model's code may rely; copy no other."""
    moved = {
        name: torch.empty_like(own, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
        for name, tensor in state.items()
        if (own := model.get(name)) is not None and own.shape == tensor.shape and own.stride() != tensor.stride()
    }
    return {**state, **moved} if moved else state
