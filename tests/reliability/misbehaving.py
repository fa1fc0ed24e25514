"""A client, an attack and a score that misbehave as they are told; scenarios name this file as code of their own."""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from flwr.app import Array, ArrayRecord, RecordDict

from attacks import Attack, InputError, Knowledge, Observation, Reconstruction
from attacks.interface.observation import State
from clients import client_app
from clients.defenses import Defense, DefenseContext
from simulator.evaluation.measures import FinishedAttack, measure

ROUND = 1  # attacks and scores behave in all others
SPARE = 64 * 2**20  # bytes that are left to a process that is to run out of memory


def say() -> None:
    raise RuntimeError("out of \x1b[31mcheese\x1b[0m\nin the [/bold] second line")


def sleep() -> None:
    time.sleep(100_000)


def block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM, signal.SIGINT])
    sleep()


def swallow() -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            sleep()


def no_memory() -> None:
    raise MemoryError


def allocate() -> None:
    """More than the process may have: the limit is its own, and goes with the error."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, before[1]))
    try:
        torch.zeros(4 * SPARE, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


ACTS: dict[str, Callable[[], object]] = {
    "raises": say,
    "hangs": sleep,
    "blocks signals": block,
    "swallows its time limit": swallow,
    "calls sys.exit": lambda: sys.exit(0),
    "calls os._exit": lambda: os._exit(3),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),  # as the kernel does where memory is short
    "raises MemoryError": no_memory,
    "exceeds its memory": allocate,
}


def _every(change: Callable[[Any], Any]) -> Callable[[RecordDict], None]:
    """The arrays of a reply, each of them changed."""

    def spoil(content: RecordDict) -> None:
        arrays = {name: array.numpy() for name, array in content.array_records["arrays"].items()}
        content["arrays"] = ArrayRecord({name: Array(change(value)) for name, value in arrays.items()})

    return spoil


def _renamed(content: RecordDict) -> None:
    content["arrays"] = ArrayRecord({f"my_{name}": array for name, array in content.array_records["arrays"].items()})


REPLIES: dict[str, Callable[[RecordDict], object]] = {
    "sends other shapes": _every(lambda value: value.reshape(1, -1)),
    "sends other types": _every(lambda value: value.astype("int32")),
    "sends NaN": _every(lambda value: value * float("nan")),
    "sends Inf": _every(lambda value: value + float("inf")),
    "sends huge numbers": _every(lambda value: value * 0 + 1e30),
    "sends no arrays": lambda content: content.pop("arrays"),
    "sends other names": _renamed,
    "says it has NaN images": lambda content: content["metrics"].update({"num-examples": float("nan")}),
}


@dataclass(frozen=True)
class Client(Defense):
    """faults: what each client, or with `by: round` client 1 in each round, does wrong; "" for nothing."""

    name: ClassVar[str] = "client"

    faults: tuple[str, ...]
    by: Literal["client", "round"] = "client"

    def protect_update(self, delta: State, context: DefenseContext) -> tuple[State, dict[str, float]]:
        fault = self.fault(context.round, context.client)
        if fault in ACTS:
            ACTS[fault]()
        if fault == "sends back what it got":
            return {name: torch.zeros_like(value) for name, value in delta.items()}, {}
        if fault in REPLIES:
            spoil_next_reply(REPLIES[fault])
        return delta, {}

    def fault(self, round: int, client: int) -> str:
        """In a simulation the second round has none."""
        if self.by == "round":
            return self.faults[round - 1] if client == 1 else ""
        return self.faults[client] if round == ROUND else ""


def spoil_next_reply(spoil: Callable[[RecordDict], object]) -> None:
    """What this process answers next is not what fedspill's own client would: any program may run at the other end."""
    own = client_app.reply_records

    def spoiled(*args: Any) -> RecordDict:
        client_app.reply_records = own
        content = own(*args)
        spoil(content)
        return content

    client_app.reply_records = spoiled


@dataclass(frozen=True)
class Faulty(Attack):
    """Returns nothing, and does so in the way of its fault where it sees the global checkpoint of round 1."""

    name: ClassVar[str] = "faulty"
    infers: ClassVar[tuple[str, ...]] = ("num_private", "pixel_mean")

    fault: str = ""
    scoring: bool = False

    def reconstruct(
        self, observation: Observation, knowledge: Knowledge, generator: torch.Generator, progress: Any
    ) -> Reconstruction:
        nothing = torch.zeros(0, *observation.input_shape)
        if (observation.round, observation.threat_model) != (ROUND, "observer"):
            return Reconstruction(nothing, torch.zeros(0))
        if self.scoring:
            return Reconstruction(nothing, torch.zeros(0), facts={"fault": self.fault})
        if self.fault == "cannot run":
            raise InputError("attack 'faulty' needs another network")
        if self.fault == "returns NaN":
            return Reconstruction(torch.full((1, *observation.input_shape), torch.nan), torch.zeros(1))
        if self.fault == "returns other shapes":
            return Reconstruction(torch.zeros(3, 7), torch.zeros(3))
        ACTS[self.fault]()
        raise AssertionError(self.fault)


@measure("own measure")
def own_measure(attack: FinishedAttack) -> dict[str, Any]:
    if fault := attack.found.facts.get("fault"):
        ACTS[str(fault)]()
    return {}
