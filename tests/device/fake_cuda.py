"""What `torch.cuda` has to offer beside tensors, for the card that is not there: one device, streams, and graphs."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

# What torch asks of a backend's module, also after the tests of the card: the whole process keeps it.
BACKEND = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: False,  # else DataParallel and checkpointing, in whatever test, take the card for theirs
    current_device=lambda: 0,
    device_count=lambda: 1,
    manual_seed_all=lambda seed: None,
    get_rng_state=lambda device=None: torch.get_rng_state(),
    set_rng_state=lambda state, device=None: torch.set_rng_state(state),
    _is_in_bad_fork=lambda: False,
)


class Capture:
    """Operations as a CUDA graph holds them: on the memory that they had when they were captured.

    A GPU does not run what it captures. Here it is run, for its shapes, and what it wrote is put back.
    """

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.overwritten: list[tuple[Tensor, Tensor]] = []

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.overwritten += [(tensor, tensor.clone()) for tensor in tree_leaves(value)]
        found = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, found))
        return found

    def end(self) -> None:
        for tensor, before in reversed(self.overwritten):
            tensor.copy_(before)

    def replay(self) -> None:
        for func, args, kwargs, found in self.operations:
            again = func(*args, **kwargs)
            if all(returned.alias_info is None for returned in func._schema.returns):  # neither in place nor a view
                for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor):  # a gradient that nobody asked for is None
                        old.copy_(new)


class Stream:
    """Work is done in order, on any stream."""

    def __init__(self, *_: object) -> None:
        return

    def wait_stream(self, other: "Stream") -> None:
        return


def fake_cuda(rules: Any) -> dict[str, Any]:
    """Names of `torch.cuda`, with what stands in for them. rules: of the card, which notes what is captured."""

    class Graph:
        capture: Capture

        def replay(self) -> None:
            with torch._C._DisableTorchDispatch():
                self.capture.replay()

    @contextlib.contextmanager
    def graph(into: Graph, stream: object = None) -> Iterator[None]:
        rules.capture = Capture()
        try:
            yield
            into.capture = rules.capture
        finally:
            ended, rules.capture = rules.capture, None
            with torch._C._DisableTorchDispatch():
                ended.end()

    @contextlib.contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_current_stream_capturing": lambda: rules.capture is not None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "manual_seed_all": lambda seed: None,
        "synchronize": lambda device=None: None,
        "device": nothing,
        "stream": nothing,
        "Stream": Stream,
        "current_stream": lambda device=None: Stream(),
        "CUDAGraph": Graph,
        "graph": graph,
    }
