"""The observations of a recording on disk: those of a scenario, and of all rounds together one for each client.

Writing a recording: one round after the other, each as the server saw it.
"""

import errno
import os
import re
import shutil
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import torch
from filelock import BaseFileLock

from attacks.interface.errors import InputError
from attacks.interface.observation import State
from simulator.audit.messages import Arrays, Problems, Reply, SeenRound, log, same
from simulator.audit.recording import CONTENTS, RecordedRound, Recording, RecordingContents, SeenClient
from simulator.results.disk import LOCK, acquired, is_occupied
from simulator.results.formats import write_model
from simulator.results.keys import ALL, ObservationKey
from simulator.results.knowledge_fields import make_knowledge
from simulator.results.storage import CellStore
from simulator.results.threat_models import Round, Source, all_views

VIEWS = all_views(("server", "observer", "history"), hides_clients=False)
HISTORY = {view.source: view for view in VIEWS if view.all_rounds}

Seen = tuple[Source, int]  # a series of checkpoints: of a client, or of all (`ALL`)


class Observations:
    """What threat models see of the rounds that are kept.

    `history` has one observation of each series, up to its last round, and none while that is its only one. It holds
    all earlier ones, which together would grow with the square of the rounds.
    """

    def __init__(self, store: CellStore):
        self.store = store
        self.series: dict[Seen, dict[int, Round]] = {}  # by the number of the round
        self.images: dict[int, int] = {}  # of a client, as it said last
        self.histories: dict[Seen, ObservationKey] = {}

    def add(self, number: int, seen: Seen, ended: Round, present: list[int]) -> None:
        """Extend a series by a round, and write down what is seen of it. present: all clients of the round."""
        source, client = seen
        self.series.setdefault(seen, {})[number] = ended
        for view in VIEWS:
            if view.source is source and not view.all_rounds:
                key = ObservationKey(number, client, view.threat_model)
                self.store.save_observation(view.observation(key, [ended], present), self._knowledge(seen))
        self._write_history(seen)

    def forget(self, number: int) -> set[str]:
        """Take a round away; returns the names of its checkpoint files."""
        files: set[str] = set()
        for seen in [seen for seen, rounds in self.series.items() if number in rounds]:
            gone = self.series[seen].pop(number)
            files |= {gone.initial, gone.final}
            for view in VIEWS:
                if not view.all_rounds:
                    self._unlink(ObservationKey(number, seen[1], view.threat_model))
            self._write_history(seen)
            if not self.series[seen]:
                del self.series[seen]
        return files

    @property
    def files(self) -> set[str]:
        """The checkpoint files that some observation needs."""
        return {name for rounds in self.series.values() for r in rounds.values() for name in (r.initial, r.final)}

    def _knowledge(self, seen: Seen):
        """What the server is told beside the checkpoints; an observer is told nothing."""
        told = {"num_private": self.images[seen[1]]} if seen[1] in self.images else {}
        return make_knowledge(told if seen[0] is Source.RETURNED else {})

    def _write_history(self, seen: Seen) -> None:
        before, rounds, view = self.histories.pop(seen, None), self.series[seen], HISTORY[seen[0]]
        if len(rounds) > 1:
            self.histories[seen] = key = ObservationKey(max(rounds), seen[1], view.threat_model)
            self.store.save_observation(view.observation(key, list(rounds.values())), self._knowledge(seen))
        if before is not None and before != self.histories.get(seen):
            self._unlink(before)

    def _unlink(self, key: ObservationKey) -> None:
        self.store.observation_path(key).unlink(missing_ok=True)


OWN = re.compile(  # what a recording writes, below its folder
    r"\.lock|\.?recording\.json(\.partial)?|checkpoints"
    r"|checkpoints/\.?((global|sent|client)_\w+\.safetensors|round_\w+\.json)(\.partial)?"
)
NOT_WRITTEN = "a checkpoint could not be written down"


@dataclass(frozen=True)
class Kept:
    """What of a federation is kept. rounds: how many of the last, clients: which, None for all. free: bytes of the disk
    that have to stay free."""

    rounds: int | None = None
    clients: frozenset[int] | None = None
    free: int = 10**9


@dataclass
class WrittenRound:
    """The files of a round. initial: of what was sent, by client; ALL: the global checkpoint. returned: of what came
    back, by client."""

    number: int
    initial: dict[int, str] = field(default_factory=dict)
    returned: dict[int, str] = field(default_factory=dict)


class RecordingWriter:
    """A recording under way. What cannot be written is a problem, and the rest is written all the same."""

    def __init__(self, path: Path, strategy: str, kept: Kept, problems: Problems):
        """strategy: its name. InputError where `path` is somebody else's folder, or another recording is under way
        there; nothing is made yet."""
        self.path = Path(os.path.realpath(path))  # a link that moves away leaves the folder where it was
        self.strategy, self.kept, self.problems = strategy, kept, problems
        _check_folder(self.path)
        if is_occupied(self.path):
            raise InputError(f"Record: {_occupied(self.path)}")
        self.lock: BaseFileLock | None = None  # of the folder, from the first round to the end
        self.store = CellStore(self.path, archive=True)
        self.observations = Observations(self.store)
        self.clients: dict[int, SeenClient] = {}
        self.numbers: dict[int, int] = {}  # of clients, by node id
        self.rounds: list[RecordedRound] = []
        self.latest: tuple[Arrays, str] | None = None  # the last global checkpoint written, and its file
        self.last_round, self.begun = 0, False

    def write(self, seen: SeenRound) -> None:
        """One round: its checkpoints, what each threat model sees of them, and who was in it."""
        with self.problems.caught("a round could not be recorded", f"round {seen.server_round}"):
            self._begin()
            # a strategy that is started again counts from 1 again
            after = seen.server_round > self.last_round
            written = WrittenRound(seen.server_round if after else self.last_round + 1)
            written.initial[ALL] = self._global_file(written.number, seen.sent)
            self._write_sent(written, seen)
            if seen.replies:
                self._write_returned(written, seen)
        if self.begun:
            self.write_contents()

    def write_contents(self) -> None:
        """recording.json, as it is now."""
        with self.problems.caught(f"{CONTENTS} could not be written"):
            write_model(self.path / CONTENTS, self._contents())

    def _begin(self) -> None:
        """Make the folder, once; where that fails, the next round tries again."""
        if self.lock is None:
            self._lock()
        if self.begun:
            return
        write_model(self.path / CONTENTS, self._contents())  # first: it says whose folder this is
        self.store.checkpoints.mkdir(exist_ok=True)
        self.begun = True
        log.info("fedspill: what the server sees is recorded in %s", self.path)

    def _lock(self) -> None:
        """Keep others out of the folder, whose checkpoints would mix with these; an earlier recording moves away."""
        if not self.begun and (self.path / CONTENTS).exists():
            with acquired(self.path, _occupied(self.path)):
                self._move_away()
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = acquired(self.path, _occupied(self.path))

    def end(self) -> None:
        """Let others into the folder."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def _move_away(self) -> None:
        """An earlier recording, beside this one. Of two the longer stays: a server that is started over and over
        neither fills the disk nor takes away the days that went before. A folder with something of the user's in it
        stays in any case."""
        ends = (f".previous-{number}" if number > 1 else ".previous" for number in count(1))
        beside = (self.path.with_name(self.path.name + end) for end in ends)
        previous = next(path for path in beside if not os.path.lexists(path) or _is_ours(path))
        if previous.exists() and _rounds_of(previous) > _rounds_of(self.path):
            if _is_ours(self.path):
                shutil.rmtree(self.path)
                log.info(
                    "fedspill: the recording that was there has made way; the longer one before it is %s", previous
                )
                return
            previous = next(path for path in beside if not os.path.lexists(path))
        elif previous.exists():
            shutil.rmtree(previous)
        self.path.rename(previous)
        log.info("fedspill: the recording that was there is now %s", previous)

    def _write_sent(self, written: WrittenRound, seen: SeenRound) -> None:
        """What clients are sent: its own file where a strategy sends one of them another checkpoint than the global."""
        for node in sorted(seen.to):
            client = self.numbers.setdefault(node, len(self.numbers))
            self.clients.setdefault(client, SeenClient(node=node))
            written.initial[client] = written.initial[ALL]
            if self._keeps(client) and not same(seen.to[node], seen.sent):
                del written.initial[client]
                with self.problems.caught(NOT_WRITTEN, f"round {written.number}, sent to client {client}"):
                    written.initial[client] = self.store.save_sent(written.number, client, self._state(seen.to[node]))

    def _write_returned(self, written: WrittenRound, seen: SeenRound) -> None:
        """What came back, the checkpoint after the round, and what is seen of both."""
        self.last_round = written.number
        for reply in seen.replies:
            client = self.numbers[reply.node]
            with self.problems.caught(NOT_WRITTEN, f"round {written.number}, returned by client {client}"):
                self._write_reply(written, client, reply)
        final = None
        if seen.final is not None:
            with self.problems.caught(NOT_WRITTEN, f"round {written.number}, the global one after it"):
                final = self._save_global(written.number, seen.final)
        images = {self.numbers[reply.node]: reply.images for reply in seen.replies if reply.images is not None}
        clients = tuple(sorted(written.returned))
        self.rounds.append(RecordedRound(round=written.number, clients=clients, images=dict(sorted(images.items()))))
        self._observe(written, final, [self.numbers[reply.node] for reply in seen.replies])
        self._forget_old_rounds()

    def _write_reply(self, written: WrittenRound, client: int, reply: Reply) -> None:
        if reply.images is not None:
            self.observations.images[client] = reply.images
        if reply.name is not None:
            self.clients[client] = SeenClient(node=reply.node, name=reply.name)
        if client in written.initial and self._keeps(client):
            written.returned[client] = self.store.save_client(written.number, client, self._state(reply.arrays))

    def _global_file(self, number: int, arrays: Arrays) -> str:
        """The file of the checkpoint that a round starts from: most often the one that the last round ended with."""
        if self.latest is None:
            return self._save_global(number - 1, arrays)
        if not same(self.latest[0], arrays):  # the user's own code has changed it, or it was not written
            self.latest = arrays, self.store.save_sent(number, ALL, self._state(arrays))
        return self.latest[1]

    def _save_global(self, number: int, arrays: Arrays) -> str:
        self.latest = arrays, self.store.save_global(number, self._state(arrays))
        return self.latest[1]

    def _keeps(self, client: int) -> bool:
        return self.kept.clients is None or client in self.kept.clients

    def _state(self, arrays: Arrays) -> State:
        """Flower's arrays as a state dict to be written; a list of them has the names "0", "1", … OSError where that
        would leave less of the disk than has to stay free."""
        free = shutil.disk_usage(self.store.checkpoints).free - sum(len(array.data) for array in arrays.values())
        if free < self.kept.free:
            left = f"less than {self.kept.free / 1e9:g} GB (keep_free) would stay free"
            raise OSError(errno.ENOSPC, left, str(self.store.checkpoints))
        return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}

    def _observe(self, written: WrittenRound, final: str | None, healthy: list[int]) -> None:
        """What every threat model sees of the round. final: the file of the checkpoint after it, None for none."""
        for client, returned in sorted(written.returned.items()):
            ended = Round(written.initial[client], returned, (client,))
            self.observations.add(written.number, (Source.RETURNED, client), ended, healthy)
        if final is not None:
            ended = Round(written.initial[ALL], final, tuple(sorted(healthy)))
            self.observations.add(written.number, (Source.GLOBAL, ALL), ended, healthy)

    def _forget_old_rounds(self) -> None:
        """Take away what only rounds before the last ones need."""
        gone: set[str] = set()
        while self.kept.rounds is not None and len(self.rounds) > self.kept.rounds:
            gone |= self.observations.forget(self.rounds.pop(0).round)
        needed = self.observations.files | ({self.latest[1]} if self.latest is not None else set())
        for name in gone - needed:
            (self.store.checkpoints / name).unlink(missing_ok=True)

    def _contents(self) -> RecordingContents:
        return RecordingContents(
            strategy=self.strategy,
            clients=self.clients,
            rounds=tuple(self.rounds),
            problems=self.problems.lines(),
        )


def _occupied(path: Path) -> str:
    return (
        f"another process records into {str(path)!r}, or a Record of this one whose finish() was not called: "
        "name another folder"
    )


def _rounds_of(recording: Path) -> int:
    """How many it has; none where it is damaged."""
    try:
        return len(Recording(recording).rounds)
    except (InputError, OSError, ValueError):
        return 0


def _is_ours(folder: Path) -> bool:
    """Whether nothing but a recording is in a folder, so that nobody misses more than that."""
    return (folder / CONTENTS).is_file() and all(
        OWN.fullmatch(path.relative_to(folder).as_posix()) and not path.is_symlink() for path in folder.rglob("*")
    )


def _check_folder(path: Path) -> None:
    """Raise InputError where a recording would go into a folder that holds something else, or an earlier recording that
    cannot make way."""
    if path.is_dir() and (path / CONTENTS).exists():
        if path.is_mount() or not os.access(path.parent, os.W_OK | os.X_OK):
            raise InputError(
                f"Record: {str(path)!r} holds an earlier recording and cannot be renamed (what it lies in cannot be "
                "written, or it is a volume of its own): name another folder, below it for example"
            )
        return
    if path.exists() and not (path.is_dir() and all(inside.name == LOCK for inside in path.iterdir())):
        raise InputError(f"Record: {str(path)!r} holds something else than a recording: name another folder")
