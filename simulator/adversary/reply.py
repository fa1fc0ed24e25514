"""What a client sent back in a round, read and checked in one place: whatever is wrong with it becomes a row.

A client is somebody else's program on somebody else's machine. Flower's strategies take its numbers and arrays as they
are: one NaN in a weight makes NaN of the global checkpoint, one missing array ends the federation.

Who takes part in a round, and what comes back: the schedule of clients, their replies and their failures.
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

from attacks.interface.observation import State
from clients.client_app import OUT_OF_TIME
from clients.defenses.differential_privacy.guarantee import Guarantee, from_json
from simulator.errors import RunError, one_line
from simulator.results.columns import is_number
from simulator.results.privacy import privacy_columns
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import WEIGHT

ARRAYS, METRICS = "arrays", "metrics"  # the records that a strategy reads
COUNTS = {WEIGHT: 1, "steps": 0}  # columns of the clients table, and the least that each may be
NUMBERS = ("first-loss", "last-loss", "seconds")  # more of them
WHEREABOUTS = {"worker": str, "pid": int, "gpu-ids": str, "device": str}
MOST = 10**12  # what is beyond is no number of images or steps


class BadReply(Exception):
    """What is wrong with a reply, in one line."""


@dataclass(frozen=True)
class ClientReply:
    """What a client sent back in a round.

    status: ok, failed or timeout, with the reason in `detail`. message: what the strategy may see of it, None unless
    the status is ok. columns: what the client reported, as columns of the clients table, as far as it can be read.
    guarantees: of differential privacy, after this round. distilled: the images (M, C, H, W) in [0, 1] that it trained
    on instead of its own: for the scorer.
    """

    client: int
    status: str
    detail: str
    message: Message | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    guarantees: tuple[Guarantee, ...] = ()
    distilled: Tensor | None = None

    @classmethod
    def of(cls, client: int, message: Message | None, sent: Mapping[str, Array], timeout: float) -> "ClientReply":
        """Read a message; nothing in it raises. sent: the arrays that it answers. timeout: seconds that the client
        had."""
        if message is None or (message.has_error() and message.error.code == OUT_OF_TIME):
            return cls._without(client, "timeout", f"no reply within federation.timeout = {timeout:g} s")
        if message.has_error():
            return cls._without(client, "failed", one_line(message.error.reason or "no reason given"))
        try:
            columns, guarantees = _columns(message.content), _guarantees(message.content)
        except Exception as error:  # a record that is not there, or holds something else
            return cls._without(client, "failed", _wrong(error))
        columns |= privacy_columns(guarantees)
        try:
            arrays, distilled = _arrays(message.content, sent), _distilled(message.content)
        except Exception as error:
            failed = cls._without(client, "failed", _wrong(error))
            return cls(client, "failed", failed.detail, None, columns | failed.columns, guarantees)
        metrics = MetricRecord()  # a strategy averages every metric that it finds, and fails where one is no number
        for name, value in _metrics(message.content).items():
            if is_number(value):
                metrics[name] = value
        message.content = RecordDict({ARRAYS: arrays, METRICS: metrics})
        columns |= {"client": client, "status": "ok", "detail": ""}
        return cls(client, "ok", "", message, columns, guarantees, distilled)

    @classmethod
    def _without(cls, client: int, status: str, detail: str) -> "ClientReply":
        return cls(client, status, detail, columns={"client": client, "status": status, "detail": detail})

    @property
    def healthy(self) -> bool:
        return self.status == "ok"

    @cached_property
    def state(self) -> State | None:
        """Its checkpoint; None unless the status is ok."""
        return None if self.message is None else self.message.content.array_records[ARRAYS].to_torch_state_dict()


def _wrong(error: Exception) -> str:
    if isinstance(error, BadReply):
        return f"the client's reply {error}"
    return one_line(f"the client's reply cannot be read: {type(error).__name__}: {error}")


def _metrics(content: RecordDict) -> MetricRecord:
    if METRICS not in content.metric_records:
        raise BadReply(f"has no record {METRICS!r}")
    return content.metric_records[METRICS]


def _columns(content: RecordDict) -> dict[str, Any]:
    """Numbers, whereabouts and bytes of the update. Raises where one is missing or is not what it should be."""
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


def _guarantees(content: RecordDict) -> tuple[Guarantee, ...]:
    record = content.config_records.get("privacy")
    return () if record is None else from_json(str(record["guarantees"]))


def _arrays(content: RecordDict, sent: Mapping[str, Array]) -> ArrayRecord:
    """The arrays of a reply, which are those that were sent, in shape and kind, and finite."""
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
    """Raise BadReply where one is not finite, or so large that the sum of their squares would not be in float32: norms
    and losses of a mean with it would be Inf, and NaN all that every client trains from there."""
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
    """The clients of one cell: which of them train in a round, and their replies in the order of partition ids.

    Both make the federation reproducible: Flower samples random node ids, and a float sum depends on its order.
    """

    def __init__(self, scenario: Scenario, nodes: dict[int, int]):
        """nodes: partition id -> node id of the clients of this cell."""
        self.scenario, self.nodes = scenario, nodes
        self.partitions = {node: partition for partition, node in nodes.items()}
        self.chosen: list[int] = []
        self.sent: Mapping[str, Array] = {}  # in this round

    def grid(self, grid: Grid) -> Grid:
        """The grid as a strategy is to see it: without the clients of other cells."""
        return cast(Grid, CellGrid(grid, self.nodes))

    def readdress(self, round: int, messages: list[Message]) -> list[Message]:
        """The messages of a strategy, sent to clients that the seed chooses: as many, or each by a coin of its own."""
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
        """The reply of every client that was asked in this round, by partition id.

        Of a client that is lost, Flower's SuperLink says so itself: that message comes from no node of ours.
        """
        received = {self.partitions.get(message.metadata.src_node_id): message for message in messages}
        timeout = self.scenario.federation.timeout
        return [ClientReply.of(client, received.get(client), self.sent, timeout) for client in self.chosen]

    def check_failures(self, round: int, replies: list[ClientReply]) -> None:
        """Raise RunError where more clients failed than the scenario allows, or all of them."""
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
    """A grid that shows a strategy the nodes of one cell only, in the order of their partitions."""

    def __init__(self, grid: Grid, nodes: dict[int, int]):
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> list[int]:
        return [self._nodes[partition] for partition in sorted(self._nodes)]

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)
