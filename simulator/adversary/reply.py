"""Read and check what clients send back in a round; whatever is wrong with a reply becomes a row.

A client is somebody else's program on somebody else's machine. Flower's strategies take its numbers and arrays as they
are: one NaN in a weight makes the global checkpoint NaN, one missing array ends the federation.

`Participation` chooses the clients of a round, and has their replies and their failures.
"""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from attacks.interface.errors import one_line
from attacks.interface.observation import State
from clients.client_app import OUT_OF_TIME
from clients.defenses.guarantee import Guarantee, from_json
from simulator.adversary.statistics import ARRAYS
from simulator.results.columns import is_number
from simulator.results.privacy import privacy_columns
from simulator.run_errors import RunError
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import WEIGHT

METRICS = "metrics"  # the record beside ARRAYS that a strategy reads
COUNTS = {WEIGHT: 1, "steps": 0}  # columns of the clients table, and the least that each may be
NUMBERS = ("first-loss", "last-loss", "seconds")  # columns of the clients table
WHEREABOUTS = {"worker": str, "pid": int, "gpu-ids": str, "device": str}
MOST = 10**12  # images or steps; a larger number is a mistake


class BadReply(Exception):
    """A fault of a reply, in one line."""


@dataclass(frozen=True)
class ClientReply:
    """The reply of a client in a round, read and checked.

    status: ok, failed or timeout.
    detail: the reason, unless the status is ok.
    message: the part of the reply that a strategy may see; None unless the status is ok.
    reported: columns of the clients table, as far as they can be read.
    guarantees: of differential privacy, after this round.
    distilled: the images (M, C, H, W) in [0, 1] that the client trained on instead of its own: for the scorer.
    """

    client: int
    status: str
    detail: str
    message: Message | None = None
    reported: dict[str, Any] = field(default_factory=dict)
    guarantees: tuple[Guarantee, ...] = ()
    distilled: Tensor | None = None

    @classmethod
    def of(cls, client: int, message: Message | None, sent: Mapping[str, Array], timeout: float) -> "ClientReply":
        """Read a message; never raise. sent: the arrays that it answers. timeout: seconds that the client had."""
        if message is None or (message.has_error() and message.error.code == OUT_OF_TIME):
            return cls(client, "timeout", f"no reply within federation.timeout = {timeout:g} s")
        if message.has_error():
            return cls(client, "failed", one_line(message.error.reason or "no reason given"))
        reported: dict[str, Any] = {}
        guarantees: tuple[Guarantee, ...] = ()
        try:
            reported, privacy = _reported(message.content), message.content.config_records.get("privacy")
            guarantees = () if privacy is None else from_json(str(privacy["guarantees"]))
            reported |= privacy_columns(guarantees)
            arrays, distilled = _arrays(message.content, sent), _distilled(message.content)
        except Exception as error:  # a record is missing, or holds something else
            return cls(client, "failed", _wrong(error), None, reported, guarantees)
        metrics = MetricRecord()  # a strategy averages every metric that it finds, and fails where one is no number
        for name, value in _metrics(message.content).items():
            if is_number(value):
                metrics[name] = value
        message.content = RecordDict({ARRAYS: arrays, METRICS: metrics})
        return cls(client, "ok", "", message, reported, guarantees, distilled)

    @property
    def columns(self) -> dict[str, Any]:
        """The row of the clients table."""
        return {**self.reported, "client": self.client, "status": self.status, "detail": self.detail}

    @property
    def healthy(self) -> bool:
        return self.status == "ok"

    @cached_property
    def state(self) -> State | None:
        """The checkpoint; None unless the status is ok."""
        return None if self.message is None else self.message.content.array_records[ARRAYS].to_torch_state_dict()


def _wrong(error: Exception) -> str:
    if isinstance(error, BadReply):
        return f"the client's reply {error}"
    return one_line(f"the client's reply cannot be read: {type(error).__name__}: {error}")


def _metrics(content: RecordDict) -> MetricRecord:
    if METRICS not in content.metric_records:
        raise BadReply(f"has no record {METRICS!r}")
    return content.metric_records[METRICS]


def _reported(content: RecordDict) -> dict[str, Any]:
    """Return numbers, whereabouts and bytes of the update; raise if one is missing or of the wrong kind."""
    metrics = _metrics(content)
    columns: dict[str, Any] = {}
    for name, least in COUNTS.items():
        value = _number(metrics, name)
        if not (least <= value <= MOST and value == int(value)):
            raise BadReply(f"says {name} = {value}: no number of {'images' if name == WEIGHT else name}")
        columns[name.replace("-", "_")] = int(value)
    for name in NUMBERS:
        columns[name.replace("-", "_")] = _number(metrics, name)
    where = content.config_records.get("where", ConfigRecord())
    for name, kind in WHEREABOUTS.items():
        said = where.get(name)
        if not isinstance(said, kind) or (isinstance(said, int) and not 0 <= said < 2**31):
            raise BadReply(f"says {name} = {str(said)[:40]!r}: no {kind.__name__} that fits")
        columns[name.replace("-", "_")] = one_line(said, most=100) if isinstance(said, str) else said
    size = content.config_records.get("defenses", ConfigRecord()).get("bytes")
    if is_number(size) and math.isfinite(cast(float, size)):
        columns["bytes"] = size
    return columns


def _number(metrics: MetricRecord, name: str) -> int | float:
    value = metrics.get(name)
    if not is_number(value):
        raise BadReply(f"says {name} = {str(value)[:40]!r}: no number")
    return cast(int | float, value)


def _arrays(content: RecordDict, sent: Mapping[str, Array]) -> ArrayRecord:
    """Return the arrays of a reply; raise BadReply unless names, shapes and kinds are those sent, and all finite."""
    if ARRAYS not in content.array_records:
        raise BadReply(f"has no record {ARRAYS!r}")
    arrays = content.array_records[ARRAYS]
    if wrong := set(arrays) ^ set(sent):
        name = min(wrong)
        raise BadReply(
            f"{'lacks' if name in sent else 'has'} the array {name!r}, which was {'' if name in sent else 'not '}sent"
        )
    for name, array in sent.items():
        value = arrays[name]
        # a server optimizer sends float64, and float32 comes back: numbers of one kind are enough
        alike = value.dtype == array.dtype or (_is_floating(value) and _is_floating(array))
        if tuple(value.shape) != tuple(array.shape) or not alike:
            found, wanted = f"{value.dtype} {tuple(value.shape)}", f"{array.dtype} {tuple(array.shape)}"
            raise BadReply(f"has {name!r} of {found}, sent was {wanted}")
    for name, tensor in arrays.to_torch_state_dict().items():  # raises where the bytes are not what shape and type say
        if tuple(tensor.shape) != tuple(sent[name].shape):
            raise BadReply(f"has {name!r} of other bytes than its shape says")
        if tensor.is_floating_point() and tensor.numel():
            _check_numbers(name, tensor)
    return arrays


def _check_numbers(name: str, tensor: Tensor) -> None:
    """Raise BadReply if a number is not finite, or if the sum of the squares overflows float32: norms and losses of the
    mean would be Inf, and every client would train NaN from there."""
    size = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
    if size**2 <= torch.finfo(torch.float32).max:
        return
    if not torch.isfinite(tensor).all():
        raise BadReply(f"holds NaN or Inf in {name!r}: its training diverged")
    raise BadReply(f"holds numbers up to {float(tensor.abs().max()):.0e} in {name!r}: their squares overflow")


def _is_floating(array: Array) -> bool:
    return array.dtype.startswith(("float", "bfloat"))


def _distilled(content: RecordDict) -> Tensor | None:
    if (record := content.config_records.get("distilled")) is None:
        return None
    pixels = torch.frombuffer(bytearray(cast(bytes, record["float32"])), dtype=torch.float32)
    images = pixels.reshape(cast(list[int], record["shape"]))
    if images.dim() != 4 or not torch.isfinite(images).all():
        raise BadReply(f"has distilled images of shape {tuple(images.shape)}")
    return images


class Participation:
    """Chooses the clients of one cell that train in a round, and sorts their replies by partition id.

    Both make the federation reproducible: Flower samples random node ids, and a float sum depends on its order.
    """

    def __init__(self, scenario: Scenario, nodes: dict[int, int]):
        """nodes: partition id -> node id of the clients of this cell."""
        self.scenario, self.nodes = scenario, nodes
        self.partitions = {node: partition for partition, node in nodes.items()}
        self.chosen: list[int] = []
        self.sent: Mapping[str, Array] = {}  # in this round

    def grid(self, grid: Grid) -> Grid:
        """Return the grid for a strategy, without the clients of other cells."""
        return cast(Grid, CellGrid(grid, self.nodes))

    def readdress(self, round: int, messages: list[Message]) -> list[Message]:
        """Send the messages of a strategy to clients that the seed chooses: as many, or each by a coin of its own."""
        schedule = random.Random(f"{self.scenario.seed}/{round}")
        if self.scenario.poisson:
            fraction = self.scenario.federation.fraction
            self.chosen = [client for client in sorted(self.nodes) if schedule.random() < fraction]
        else:
            self.chosen = sorted(schedule.sample(sorted(self.nodes), len(messages)))
        first = messages[0]  # all say the same
        self.sent = dict(first.content.array_records.get(ARRAYS, {}))
        kind = first.metadata.message_type
        return [
            Message(content=first.content, message_type=kind, dst_node_id=self.nodes[client]) for client in self.chosen
        ]

    def read(self, messages: Iterable[Message]) -> list[ClientReply]:
        """Return the reply of every client that was asked in this round, by partition id.

        If a client is lost, Flower's SuperLink says so itself, in a message that comes from no node of ours.
        """
        received = {self.partitions.get(message.metadata.src_node_id): message for message in messages}
        timeout = self.scenario.federation.timeout
        return [ClientReply.of(client, received.get(client), self.sent, timeout) for client in self.chosen]

    def check_failures(self, round: int, replies: list[ClientReply]) -> None:
        """Raise RunError if more clients failed than the scenario allows, or all of them."""
        if not replies:  # nobody was asked
            return
        failures = [reply for reply in replies if not reply.healthy]
        limit = self.scenario.federation.max_failures
        if len(failures) == len(replies) or len(failures) > limit * len(replies):
            reasons = "; ".join(f"client {reply.client}: {reply.detail}" for reply in failures[:3])
            raise RunError(
                f"round {round}: {len(failures)} of {len(replies)} clients failed, "
                f"more than federation.max_failures = {limit:g} allows ({reasons})"
            )


class CellGrid:
    """Shows a strategy the nodes of one cell only, in the order of their partitions."""

    def __init__(self, grid: Grid, nodes: dict[int, int]):
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> list[int]:
        return [self._nodes[partition] for partition in sorted(self._nodes)]

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)
