"""Write a recording, round by round. One recording at a time claims the folder; an earlier one is moved away."""

import errno
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import torch
from filelock import BaseFileLock

from attacks import Knowledge
from attacks.interface.errors import InputError
from attacks.interface.observation import State
from simulator.audit.messages import Arrays, Problems, ServerRound, log
from simulator.audit.recording import CONTENTS, RecordedRound, Recording, RecordingContents, SeenClient
from simulator.results.disk import LOCK, acquired, is_occupied, write_model
from simulator.results.keys import ALL, ObservationKey, RecordedObservation
from simulator.results.observation_writer import ObservationWriter, Retention, Series
from simulator.results.storage import CellStore
from simulator.results.threat_models import CheckpointSource, RoundFiles, View, all_views

OWN = re.compile(  # paths of a recording, below its folder
    r"\.lock|\.?recording\.json(\.partial)?|checkpoints"
    r"|checkpoints/\.?((global|sent|client)_\w+\.safetensors|round_\w+\.json)(\.partial)?"
)


def _check(path: Path, occupied: str) -> None:
    """Raise InputError if `path` holds something else, a recording that cannot be renamed, or one that is under way."""
    if is_occupied(path):
        raise InputError(f"Record: {occupied}")
    if path.is_dir() and (path / CONTENTS).exists():
        if path.is_mount() or not os.access(path.parent, os.W_OK | os.X_OK):
            raise InputError(
                f"Record: {str(path)!r} holds an earlier recording and cannot be renamed (what it lies in cannot be "
                "written, or it is a volume of its own): name another folder, below it for example"
            )
        return
    if path.exists() and not (path.is_dir() and all(inside.name == LOCK for inside in path.iterdir())):
        raise InputError(f"Record: {str(path)!r} holds something else than a recording: name another folder")


def _move_away(path: Path) -> None:
    """Rename an earlier recording to `NAME.previous`; if one is there already, keep the longer of the two.

    So a server that restarts often neither fills the disk nor loses the days before. A folder with other files is never
    removed.
    """
    ends = (f".previous-{number}" if number > 1 else ".previous" for number in count(1))
    beside = (path.with_name(path.name + end) for end in ends)
    previous = next(other for other in beside if not os.path.lexists(other) or _is_recording_alone(other))
    if previous.exists() and _length(previous) > _length(path):
        if _is_recording_alone(path):
            shutil.rmtree(path)
            log.info("fedspill: the recording that was there has made way; the longer one before it is %s", previous)
            return
        previous = next(other for other in beside if not os.path.lexists(other))
    elif previous.exists():
        shutil.rmtree(previous)
    path.rename(previous)
    log.info("fedspill: the recording that was there is now %s", previous)


def _length(recording: Path) -> int:
    """Return the number of its rounds; 0 if it is damaged."""
    try:
        return len(Recording(recording).rounds)
    except (InputError, OSError, ValueError):
        return 0


def _is_recording_alone(folder: Path) -> bool:
    return (folder / CONTENTS).is_file() and all(
        OWN.fullmatch(path.relative_to(folder).as_posix()) and not path.is_symlink() for path in folder.rglob("*")
    )


VIEWS = all_views(("server", "observer", "history"), hides_clients=False)
OF_ONE_ROUND = [view for view in VIEWS if not view.all_rounds]
HISTORY = {view.source: view for view in VIEWS if view.all_rounds}
NOT_WRITTEN = "a checkpoint could not be written down"


@dataclass(frozen=True)
class RetentionPolicy:
    """The part of a federation that is kept, as `Record` takes it.

    free: in bytes.
    """

    rounds: int | None = None
    clients: frozenset[int] | None = None
    free: int = 10**9


@dataclass
class SavedRound:
    """The checkpoint files of a round.

    initial: by client, the file of what it was sent; `ALL`: of the global checkpoint.
    returned: by client, the file of what it returned.
    final: the file of the global checkpoint after it.
    """

    number: int
    initial: dict[int, str] = field(default_factory=dict)
    returned: dict[int, str] = field(default_factory=dict)
    final: str | None = None


class RecordedViews:
    """The observations of the rounds that are kept.

    `history` has one observation of each series, up to its last round, and none while that is its only one: one for
    every round would grow with the square of the rounds.
    """

    def __init__(self, store: CellStore):
        self.observations = ObservationWriter(store, self._describe)
        self.images: dict[int, int] = {}
        """By client, the number of images that it reported last."""
        self.histories: dict[Series, ObservationKey] = {}

    def write(self, saved: SavedRound, present: tuple[int, ...]) -> None:
        """Write the observations of a round. present: the clients that replied."""
        returned = {client: (saved.initial[client], name) for client, name in sorted(saved.returned.items())}
        of_all = {} if saved.final is None else {CheckpointSource.GLOBAL: (saved.initial[ALL], saved.final)}
        for series in self.observations.extend(saved.number, returned, of_all, present):
            for view in OF_ONE_ROUND:
                if view.source is series[0]:
                    self.observations.write(ObservationKey(saved.number, series[1], view.threat_model), view, present)
            self._write_history(series)

    def forget_before(self, first: int) -> None:
        """Remove the observations of rounds before `first`."""
        for series, rounds in self.observations.forget_before(first):
            for number in rounds:
                for view in OF_ONE_ROUND:
                    self._remove(ObservationKey(number, series[1], view.threat_model))
            self._write_history(series)

    def _describe(
        self, view: View, seen: RecordedObservation, rounds: Sequence[RoundFiles]
    ) -> tuple[RecordedObservation, Knowledge]:
        """Grant the server the number of a client's images; an observer is told nothing."""
        told = self.images.get(seen.client) if view.source is CheckpointSource.RETURNED else None
        return seen, Knowledge(num_private=told or None)

    def _write_history(self, series: Series) -> None:
        before, rounds = self.histories.pop(series, None), self.observations.series[series]
        if len(rounds) > 1:
            view = HISTORY[series[0]]
            self.histories[series] = key = ObservationKey(rounds[-1].round, series[1], view.threat_model)
            self.observations.write(key, view)
        if before is not None and before != self.histories.get(series):
            self._remove(before)

    def _remove(self, key: ObservationKey) -> None:
        self.observations.store.observation_path(key).unlink(missing_ok=True)


class RecordingWriter:
    """A recording under way. A file that cannot be written becomes a problem, and the rest is written all the same."""

    def __init__(self, path: Path, strategy: str, kept: RetentionPolicy, problems: Problems):
        """strategy: its name. Make nothing yet; raise InputError if the folder holds something else than a recording,
        an earlier one that cannot be renamed, or one that is under way."""
        self.path = Path(os.path.realpath(path))  # a link that moves away leaves the folder where it was
        self.lock: BaseFileLock | None = None  # from the first round to the end
        self.occupied = (
            f"another process records into {str(self.path)!r}, or a Record of this one whose finish() was not called: "
            "name another folder"
        )
        _check(self.path, self.occupied)
        self.strategy, self.kept, self.problems = strategy, kept, problems
        self.store = CellStore(self.path, archive=True)
        self.views, self.retention = RecordedViews(self.store), Retention(self.store)
        self.clients: dict[int, SeenClient] = {}
        self.numbers: dict[int, int] = {}  # of clients, by node id
        self.rounds: list[RecordedRound] = []
        self.latest: tuple[Arrays, str] | None = None  # the last global checkpoint written, and its file
        self.last_round, self.begun = 0, False

    def write(self, seen: ServerRound) -> None:
        """Write one round: its checkpoints, its observations and its clients."""
        with self.problems.caught("a round could not be recorded", f"round {seen.server_round}"):
            self._begin()
            # a strategy that is started again counts from 1 again
            after = seen.server_round > self.last_round
            saved = SavedRound(seen.server_round if after else self.last_round + 1)
            saved.initial[ALL] = self.retention.note(self._global_file(saved.number, seen.sent), saved.number)
            self._write_sent(saved, seen)
            if seen.replies:
                self._write_returned(saved, seen)
        if self.begun:
            self.write_contents()

    def write_contents(self) -> None:
        with self.problems.caught(f"{CONTENTS} could not be written"):
            write_model(self.path / CONTENTS, self._contents())

    def end(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def _begin(self) -> None:
        """Make the folder and lock it, once; if that fails, the next round tries again. Move another recording away."""
        if self.lock is None:
            if not self.begun and (self.path / CONTENTS).exists():
                with acquired(self.path, self.occupied):
                    _move_away(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = acquired(self.path, self.occupied)
        if self.begun:
            return
        write_model(self.path / CONTENTS, self._contents())  # first: it says whose folder this is
        self.store.checkpoints.mkdir(exist_ok=True)
        self.begun = True
        log.info("fedspill: what the server sees is recorded in %s", self.path)

    def _write_sent(self, saved: SavedRound, seen: ServerRound) -> None:
        """Note the clients, and write a checkpoint that one of them is sent instead of the global one."""
        for node in sorted(seen.to):
            client = self.numbers.setdefault(node, len(self.numbers))
            self.clients.setdefault(client, SeenClient(node=node))
            saved.initial[client] = saved.initial[ALL]
            if self._keeps(client) and seen.to[node] != seen.sent:
                del saved.initial[client]
                with self.problems.caught(NOT_WRITTEN, f"round {saved.number}, sent to client {client}"):
                    name = self.store.save_sent(saved.number, client, self._state(seen.to[node]))
                    saved.initial[client] = self.retention.note(name, saved.number)

    def _write_returned(self, saved: SavedRound, seen: ServerRound) -> None:
        self.last_round = saved.number
        for reply in seen.replies:
            client = self.numbers[reply.node]
            if reply.images is not None:
                self.views.images[client] = reply.images
            if reply.name is not None:
                self.clients[client] = SeenClient(node=reply.node, name=reply.name)
            with self.problems.caught(NOT_WRITTEN, f"round {saved.number}, returned by client {client}"):
                if client in saved.initial and self._keeps(client):
                    name = self.store.save_client(saved.number, client, self._state(reply.arrays))
                    saved.returned[client] = self.retention.note(name, saved.number)
        if seen.final is not None:
            with self.problems.caught(NOT_WRITTEN, f"round {saved.number}, the global one after it"):
                # the next round starts from it
                saved.final = self.retention.note(self._save_global(saved.number, seen.final), saved.number + 1)
        images = {self.numbers[reply.node]: reply.images for reply in seen.replies if reply.images is not None}
        clients = tuple(sorted(saved.returned))
        self.rounds.append(RecordedRound(round=saved.number, clients=clients, images=dict(sorted(images.items()))))
        self.views.write(saved, tuple(sorted(self.numbers[reply.node] for reply in seen.replies)))
        if self.kept.rounds is not None and len(self.rounds) > self.kept.rounds:
            self.rounds = self.rounds[-self.kept.rounds :]
            self.views.forget_before(self.rounds[0].round)
            self.retention.keep_from(self.rounds[0].round)

    def _global_file(self, number: int, arrays: Arrays) -> str:
        """Return the file of the checkpoint before a round: usually that of the end of the last one."""
        if self.latest is None:
            return self._save_global(number - 1, arrays)
        if self.latest[0] != arrays:  # the user's own code has changed it, or it was not written
            self.latest = arrays, self.store.save_sent(number, ALL, self._state(arrays))
        return self.latest[1]

    def _save_global(self, number: int, arrays: Arrays) -> str:
        self.latest = arrays, self.store.save_global(number, self._state(arrays))
        return self.latest[1]

    def _keeps(self, client: int) -> bool:
        return self.kept.clients is None or client in self.kept.clients

    def _state(self, arrays: Arrays) -> State:
        """Return Flower's arrays as a state dict; a list of them has the names "0", "1", … Raise OSError if writing it
        would leave too little free disk."""
        free = shutil.disk_usage(self.store.checkpoints).free - sum(len(array.data) for array in arrays.values())
        if free < self.kept.free:
            left = f"less than {self.kept.free / 1e9:g} GB (keep_free) would stay free"
            raise OSError(errno.ENOSPC, left, str(self.store.checkpoints))
        return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}

    def _contents(self) -> RecordingContents:
        rounds, problems = tuple(self.rounds), self.problems.lines()
        return RecordingContents(strategy=self.strategy, clients=self.clients, rounds=rounds, problems=problems)
