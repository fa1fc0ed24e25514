"""Read the messages of somebody's federation (checkpoints, numbers of images, names of clients) without disturbing it.

`Problems` logs each kind of error once and keeps it as a line; `Background` writes in a thread of its own, so that a
round does not wait for the disk.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import Strategy

from attacks.interface.errors import one_line
from clients.time_limit import unhurried
from simulator.scenario.sections import WEIGHT

# below Flower's logger, whose lines a user of `flwr run --stream` reads
log = logging.getLogger("flwr.fedspill")
START, END = 60, 180  # letters of a long error that are kept


class Problems:
    """Collects problems from any thread: the first of each kind as a line, with the number of the others."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._count = Counter[tuple[str, str]]()
        self._lock = Lock()

    @contextmanager
    def caught(self, what: str, where: str = "") -> Iterator[None]:
        """Note any exception inside, and go on. what: its kind, together with its type. where: its place."""
        try:
            yield
        except Exception as error:
            with self._lock:
                kind = (what, type(error).__name__)
                self._count[kind] += 1
                if kind not in self._first:
                    reason = f"{kind[1]}: {_shortened(str(error))}"
                    self._first[kind] = f"{where}: {what} ({reason})" if where else f"{what} ({reason})"
                    log.warning("fedspill, recording: %s; the federation goes on", self._first[kind])

    def lines(self) -> tuple[str, ...]:
        with self._lock:
            more = {kind: f" (and {count - 1} more of the kind)" for kind, count in self._count.items() if count > 1}
            return tuple(first + more.get(kind, "") for kind, first in self._first.items())


def _shortened(text: str) -> str:
    """Return a text in one line: of a long one its beginning and its end, where a traceback says what happened."""
    line = one_line(text, most=len(text))
    return line if len(line) <= START + END else f"{line[:START]} … {line[-END:]}"


class ClientFailed(Exception):
    """A client was asked and returned no update."""


COUNTS = (WEIGHT, "num_examples")  # names of a client's number of images
NAMES = ("partition-id", "partition_id", "client-id", "client_id", "cid")  # of a client's own number or name

Arrays = dict[str, Array]  # of a checkpoint, by name; strategies replace arrays of a record, and change none


@dataclass(frozen=True)
class Reply:
    """A checkpoint that came back.

    images: the number of images that the client says it trained on.
    name: the client's own name for itself.
    """

    node: int
    arrays: Arrays
    images: int | None
    name: str | int | None


@dataclass
class ServerRound:
    """A round as the server saw it, in Flower's arrays.

    sent: the global checkpoint before the round.
    to: by node, the checkpoint that it was sent.
    final: the global checkpoint after the round, None if the strategy made none.
    """

    server_round: int
    sent: Arrays
    to: dict[int, Arrays] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    final: Arrays | None = None


class MessageReader:
    """Reads messages by the keys of a strategy, or else by similarity. A message that cannot be read is a problem."""

    def __init__(self, strategy: Strategy, problems: Problems):
        self.arrays = attribute_of(strategy, "arrayrecord_key", "arrays")
        self.images = attribute_of(strategy, "weighted_by_key", WEIGHT)
        self.problems = problems

    def sent(self, server_round: int, arrays: ArrayRecord, messages: Iterable[Message]) -> ServerRound:
        """Read the messages that begin a round."""
        seen = ServerRound(server_round, dict(arrays))
        for message in messages:
            node = message.metadata.dst_node_id
            with self.problems.caught("a message could not be read", f"round {server_round}, to node {node}"):
                seen.to[node] = self._checkpoint(message, seen.sent)
        return seen

    def returned(self, seen: ServerRound, messages: Iterable[Message]) -> None:
        """Read the replies of a round; those with an error are no update, and are noted as those that did not come."""
        silent = dict.fromkeys(seen.to, "no reply came")
        for message in messages:
            node = message.metadata.src_node_id
            with self.problems.caught("a reply could not be read", f"round {seen.server_round}, of node {node}"):
                if message.has_error():
                    silent[node] = message.error.reason or f"error {message.error.code}"
                    continue
                silent.pop(node, None)
                if node in seen.to:
                    arrays = self._checkpoint(message, seen.sent)
                    seen.replies.append(Reply(node, arrays, self._images(message), _name(message)))
        for node, reason in silent.items():
            with self.problems.caught("a client returned nothing", f"round {seen.server_round}, of node {node}"):
                raise ClientFailed(reason)

    def _checkpoint(self, message: Message, like: Mapping[str, Array]) -> Arrays:
        """Return the arrays that are a checkpoint like this one. Raise ValueError if a message has none."""
        records = message.content.array_records
        if self.arrays in records:
            return dict(records[self.arrays])
        alike = [record for record in records.values() if set(record) == set(like)] or list(records.values())
        if len(alike) != 1:
            raise ValueError(f"{len(records)} records of arrays, none called {self.arrays!r}")
        return dict(alike[0])

    def _images(self, message: Message) -> int | None:
        """Return the number of images that the client reports; None if it reports none. A strategy may weight clients
        by something else, such as their loss, which is read only where it is a whole number and nothing else is there.
        """
        records, least = list(message.content.metric_records.values()), {self.images: 1, **dict.fromkeys(COUNTS, 0)}
        for key, value in [(key, record.get(key)) for key in (*COUNTS, self.images) for record in records]:
            if isinstance(value, int | float) and math.isfinite(value) and least[key] <= value == round(value):
                return round(value)
        return None


def _name(message: Message) -> str | int | None:
    content = message.content
    metrics = [record.get(key) for record in content.metric_records.values() for key in NAMES]
    configs = [record.get(key) for record in content.config_records.values() for key in NAMES]
    return next((value for value in (*metrics, *configs) if isinstance(value, str | int)), None)


def attribute_of(strategy: Strategy, name: str, default: str) -> str:
    """Return an attribute of a strategy, or of the one that it wraps."""
    inner: object = strategy
    while inner is not None:
        if isinstance(value := vars(inner).get(name), str):
            return value
        inner = vars(inner).get("strategy")
    return default


PATIENCE = 5.0  # seconds that a round waits until the one before is written, on an idle machine
LAST = 60.0  # seconds that the end of a federation waits, on an idle machine


class Background:
    """Does one task at a time in a thread, which starts with the first; Python does not exit before it has ended."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fedspill")
        self._last: list[Future[None]] = []
        self._patience = PATIENCE

    def do(self, task: Callable[[], None]) -> None:
        """Start a task. Raise TimeoutError and drop it if the task before takes too long; the next call that finds that
        one still under way does not wait again."""
        if wait(self._last, unhurried(self._patience)).not_done:
            self._patience = 0.0
            raise TimeoutError("the disk is slower than the federation")
        self._patience, self._last = PATIENCE, [self._pool.submit(task)]

    def finish(self) -> None:
        """Wait for the last task; raise TimeoutError if it does not end."""
        if wait(self._last, unhurried(LAST)).not_done:
            raise TimeoutError(f"the disk did not take the last round within {LAST:g} s")
