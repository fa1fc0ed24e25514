"""A client that misbehaves as it is told; scenarios name this file as code of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from flwr.app import Array, ArrayRecord, RecordDict

from attacks.interface.observation import State
from clients import client_app
from clients.defenses import Defense, DefenseContext
from tests.reliability.acts import ACTS


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
    """faults: what the clients do wrong, by round and client: "" or nothing where there is nothing."""

    name: ClassVar[str] = "client"

    faults: tuple[tuple[str, ...], ...]

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
        clients = self.faults[round - 1] if round <= len(self.faults) else ()
        return clients[client] if client < len(clients) else ""


def spoil_next_reply(spoil: Callable[[RecordDict], object]) -> None:
    """What this process answers next is not what fedspill's own client would: any program may run at the other end."""
    own = client_app.reply_records

    def spoiled(*args: Any) -> RecordDict:
        client_app.reply_records = own
        content = own(*args)
        spoil(content)
        return content

    client_app.reply_records = spoiled
