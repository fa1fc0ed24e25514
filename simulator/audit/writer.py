"""Writing a recording, round by round; nothing that happens here reaches the federation."""

import errno
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import Strategy

from attacks.interface.errors import InputError
from attacks.interface.observation import State
from simulator.adversary.threat_models import Round, Source
from simulator.audit.messages import MessageReader, same
from simulator.audit.observations import Observations
from simulator.audit.problems import Problems, log
from simulator.audit.recording import CONTENTS, FORMAT, Contents, RecordedRound, SeenClient
from simulator.results.keys import ALL
from simulator.results.storage import CellStore, write_json

NOT_RECORDED = "a round could not be recorded"
NOT_WRITTEN = "a checkpoint could not be written down"


@dataclass
class CurrentRound:
    """A round under way. initial: the file of what was sent, by client; ALL: of the global checkpoint. returned: the
    files of the replies, by client. healthy: all clients whose reply holds a checkpoint, whether it is kept or not.
    images: how many each of them said that it trained on."""

    number: int
    initial: dict[int, str] = field(default_factory=dict)
    returned: dict[int, str] = field(default_factory=dict)
    healthy: list[int] = field(default_factory=list)
    images: dict[int, int] = field(default_factory=dict)


class RecordingWriter:
    """The three moments of a round: checkpoints are `sent`, they are `returned`, and the round has `ended`."""

    def __init__(
        self, path: Path, strategy: Strategy, keep_rounds: int | None, clients: Collection[int] | None, keep_free: int
    ):
        """clients: those to keep, None for all. keep_free: bytes. InputError where `path` is somebody else's folder."""
        self.path, self.keep_rounds, self.chosen, self.keep_free = path.absolute(), keep_rounds, clients, keep_free
        self.previous = self.path.with_name(f"{self.path.name}.previous")  # an earlier recording is moved there
        for folder in (self.path, self.previous):
            _check_folder(folder)
        self.store = CellStore(self.path)
        self.observations = Observations(self.store)
        self.reader, self.problems = MessageReader(strategy), Problems()
        self.strategy = type(strategy).__name__
        self.clients: dict[int, SeenClient] = {}
        self.numbers: dict[int, int] = {}  # of clients, by node id
        self.rounds: list[RecordedRound] = []
        self.latest: tuple[ArrayRecord, str] | None = None  # the last global checkpoint written, and its file
        self.current: CurrentRound | None = None
        self.last_round, self.begun = 0, False

    def sent(self, server_round: int, arrays: ArrayRecord, messages: Sequence[Message]) -> None:
        """Write down the global checkpoint, and what clients are sent that is another."""
        self.current = None
        with self.problems.caught(NOT_RECORDED, f"round {server_round}"):
            self._begin()
            # a strategy that is started again counts from 1 again
            number = self.last_round + 1 if server_round <= self.last_round else server_round
            current = CurrentRound(number)
            current.initial[ALL] = self._global_file(number, arrays)
            for message in sorted(messages, key=lambda message: message.metadata.dst_node_id):
                client = self._number(message.metadata.dst_node_id)
                with self.problems.caught(NOT_WRITTEN, f"round {number}, sent to client {client}"):
                    current.initial[client] = self._sent_file(current, client, message, arrays)
            self.current = current

    def returned(self, replies: Sequence[Message]) -> None:
        """Write down what clients returned; replies with an error are no update."""
        if (current := self.current) is None:
            return
        for reply in replies:
            node = reply.metadata.src_node_id
            with self.problems.caught(NOT_WRITTEN, f"round {current.number}, returned by node {node}"):
                if node in self.numbers and not reply.has_error():
                    self._save_reply(current, self.numbers[node], reply)

    def ended(self, arrays: ArrayRecord | None) -> None:
        """Write down the global checkpoint after the round, what each threat model sees of it, and who was in it."""
        current, self.current = self.current, None
        if current is None or not current.healthy:
            return
        with self.problems.caught(NOT_RECORDED, f"round {current.number}"):
            self.last_round = current.number
            final = None
            if arrays is not None:
                with self.problems.caught(NOT_WRITTEN, f"round {current.number}, global"):
                    final = self._save_global(current.number, arrays)
            self.rounds.append(RecordedRound(current.number, tuple(sorted(current.returned)), current.images))
            self._observe(current, final)
            self._forget_old_rounds()
        self._write_contents()

    def finish(self) -> None:
        """Say what there is now, and what can be done with it."""
        if not self.begun:
            return
        self._write_contents()
        log.info("fedspill: %d rounds of %d clients are in %s", len(self.rounds), len(self.clients), self.path)
        log.info("fedspill: attack them by `fedspill audit %s --model FILE.py:FACTORY --shape C,H,W`", self.path)

    def _begin(self) -> None:
        """Make the folder, once; where that fails, the next round tries again."""
        if self.begun:
            return
        if (self.path / CONTENTS).exists():
            if self.previous.exists():
                shutil.rmtree(self.previous)
            self.path.rename(self.previous)
            log.info("fedspill: the recording that was there is now %s", self.previous)
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / CONTENTS, self._contents())  # first: it says whose folder this is
        self.store.checkpoints.mkdir(exist_ok=True)
        self.begun = True
        log.info("fedspill: what the server sees is recorded in %s", self.path)

    def _number(self, node: int) -> int:
        """The number of a client, the next one where it was not seen before."""
        number = self.numbers.setdefault(node, len(self.numbers))
        self.clients.setdefault(number, SeenClient(node))
        return number

    def _global_file(self, number: int, arrays: ArrayRecord) -> str:
        """The file of the checkpoint that a round starts from: most often the one that the last round ended with."""
        if self.latest is None:
            return self._save_global(number - 1, arrays)
        if not same(self.latest[0], arrays):  # the user's own code has changed it between the rounds
            self._check_room(arrays)
            self.latest = arrays, self.store.save_sent(number, ALL, _state(arrays))
        return self.latest[1]

    def _save_global(self, number: int, arrays: ArrayRecord) -> str:
        self._check_room(arrays)
        self.latest = arrays, self.store.save_global(number, _state(arrays))
        return self.latest[1]

    def _sent_file(self, current: CurrentRound, client: int, message: Message, arrays: ArrayRecord) -> str:
        """The file of what a client is sent: its own where the strategy sends each another checkpoint."""
        own = self.reader.checkpoint(message, like=arrays)
        if not self._keeps(client) or same(own, arrays):
            return current.initial[ALL]
        self._check_room(own)
        return self.store.save_sent(current.number, client, _state(own))

    def _save_reply(self, current: CurrentRound, client: int, reply: Message) -> None:
        """A healthy reply: what the client says of itself, and its checkpoint where that is to be kept."""
        arrays = self.reader.checkpoint(reply, like=self.latest[0] if self.latest else {})
        current.healthy.append(client)
        images, name = self.reader.num_images(reply), self.reader.name(reply)
        if images is not None:
            current.images[client] = self.observations.images[client] = images
        if name is not None:
            self.clients[client] = replace(self.clients[client], name=name)
        if client in current.initial and self._keeps(client):
            self._check_room(arrays)
            current.returned[client] = self.store.save_client(current.number, client, _state(arrays))

    def _keeps(self, client: int) -> bool:
        return self.chosen is None or client in self.chosen

    def _check_room(self, arrays: Mapping[str, Array]) -> None:
        """OSError where writing would leave less of the disk than has to stay free."""
        free = shutil.disk_usage(self.store.checkpoints).free - sum(len(array.data) for array in arrays.values())
        if free < self.keep_free:
            left = f"less than {self.keep_free / 1e9:g} GB (keep_free) would stay free"
            raise OSError(errno.ENOSPC, left, str(self.store.checkpoints))

    def _observe(self, current: CurrentRound, final: str | None) -> None:
        """What every threat model sees of the round. final: the file of the global checkpoint after it."""
        for client, returned in sorted(current.returned.items()):
            ended = Round(current.initial[client], returned, (client,))
            self.observations.add(current.number, (Source.RETURNED, client), ended, current.healthy)
        if final is not None:
            ended = Round(current.initial[ALL], final, tuple(sorted(current.healthy)))
            self.observations.add(current.number, (Source.GLOBAL, ALL), ended, current.healthy)

    def _forget_old_rounds(self) -> None:
        """Take away what only rounds before the last `keep_rounds` need."""
        gone: set[str] = set()
        while self.keep_rounds is not None and len(self.rounds) > self.keep_rounds:
            gone |= self.observations.forget(self.rounds.pop(0).round)
        needed = self.observations.files | ({self.latest[1]} if self.latest is not None else set())
        for name in gone - needed:
            (self.store.checkpoints / name).unlink(missing_ok=True)

    def _contents(self) -> dict[str, Any]:
        lines = self.problems.lines()
        return Contents(FORMAT, version("fedspill"), self.strategy, self.clients, tuple(self.rounds), lines).as_json()

    def _write_contents(self) -> None:
        with self.problems.caught(f"{CONTENTS} could not be written"):
            write_json(self.path / CONTENTS, self._contents())


def _check_folder(path: Path) -> None:
    """Raise InputError where a recording would go into a folder that holds something else."""
    if path.is_dir() and (not any(path.iterdir()) or (path / CONTENTS).exists()):
        return
    if path.exists():
        raise InputError(f"Record: {str(path)!r} holds something else than a recording: name another folder")


def _state(arrays: ArrayRecord) -> State:
    """The record as a state dict. A list of arrays has the names "0", "1", …"""
    return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
