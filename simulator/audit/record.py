"""`Record`: two lines in anybody's Flower app record what its server sees.

    from fedspill import Record
    strategy = Record(FedAvg(...), "runs/mine")

A fault never disturbs the federation: it is logged, and noted under `problems` of the recording.

`recording_of` makes the recording of a federation that did not run in Flower, from a folder with its checkpoints:

    FOLDER/round_1/global.pt      what was sent in round 1
    FOLDER/round_1/alice.pt       what the client `alice` returned; any name but `global`
    FOLDER/round_1/counts.json    how many images each client had, {"alice": 16}, where they are known
    FOLDER/round_2/global.pt      the aggregate of round 1, sent in round 2
    FOLDER/global.pt              the aggregate of the last round, where there is one

The files have any format that `read_checkpoint` knows, and any ending.
"""

import atexit
import re
import shlex
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from attacks.interface.errors import InputError, counted, did_you_mean
from clients.config import first_fault
from clients.models.checkpoint import read_checkpoint
from simulator.adversary.statistics import Aggregate, Messages, Wrapped
from simulator.audit.messages import Arrays, Background, MessageReader, Problems, Reply, ServerRound, log
from simulator.audit.recording import CONTENTS
from simulator.audit.writer import RecordingWriter, RetentionPolicy

NOT_RECORDED = "a round could not be recorded"


class MessageRecorder:
    """Does the work of `Record`: reads messages in the federation's thread, and writes files in another one."""

    def __init__(self, strategy: Strategy, path: Path, kept: RetentionPolicy):
        self.problems = Problems()
        self.reader = MessageReader(strategy, self.problems)
        self.writer = RecordingWriter(path, type(strategy).__name__, kept, self.problems)
        self.background = Background()
        self.seen: ServerRound | None = None

    def sent(self, server_round: int, arrays: ArrayRecord, messages: Messages) -> None:
        self.seen = None
        with self.problems.caught(NOT_RECORDED, f"round {server_round}"):
            self.seen = self.reader.sent(server_round, arrays, messages)

    def returned(self, replies: Messages) -> None:
        if self.seen is not None:
            self.reader.returned(self.seen, replies)

    def ended(self, arrays: ArrayRecord | None) -> None:
        seen, self.seen = self.seen, None
        if seen is None:
            return
        with self.problems.caught(NOT_RECORDED, f"round {seen.server_round}"):
            seen.final = None if arrays is None else dict(arrays)
            self.background.do(partial(self.writer.write, seen))

    def finish(self) -> None:
        """Wait until everything is written; log how much there is and the command that audits it."""
        atexit.unregister(self.finish)
        writer = self.writer
        with self.problems.caught("the end of the recording"):
            self.background.finish()
            if writer.begun:
                writer.write_contents()
                rounds, clients = counted(len(writer.rounds), "round"), counted(len(writer.clients), "client")
                log.info("fedspill: %s of %s: %s", rounds, clients, writer.path)
                path = shlex.quote(str(writer.path))
                if writer.rounds:
                    log.info("fedspill: next, fedspill audit %s --model FILE.py:NAME --shape C,H,W", path)
                else:
                    log.info("fedspill: nothing to audit, as no round came to its end")
            writer.end()  # left out if `background.finish` raises: a round is still being written then


class Record(Wrapped):
    """Records what a strategy of Flower's Message API sends and receives. It trains as it would without, and all its
    attributes are here.

    Checkpoints and observations go to a folder, for `fedspill audit`. An earlier recording in that folder is kept
    beside it as `NAME.previous`; of several, the one with the most rounds.
    """

    OWN = ("strategy", "recorder", "own_configure_train", "own_aggregate_train")  # all else is the strategy's

    def __init__(
        self,
        strategy: Strategy,
        path: str | Path,
        *,
        keep_rounds: int | None = None,
        clients: Collection[int] | None = None,
        keep_free: float = 1.0,
    ):
        """keep_rounds: how many of the last rounds to keep, default all. clients: which to keep, numbered as they are
        first asked, default all. keep_free: gigabytes of the disk that stay free. Raise InputError for wrong options,
        and for a folder that holds anything else than a recording, before any training.
        """
        if not isinstance(strategy, Strategy):
            kind = f"{type(strategy).__module__}.{type(strategy).__name__}"
            remedy = "use the Message API, or save what it sends and receives (docs/howto/other_frameworks.md)"
            raise InputError(f"Record takes a strategy of flwr.serverapp.strategy, not a {kind}: {remedy}")
        if keep_rounds is not None and keep_rounds < 1:
            raise InputError(f"Record: keep_rounds is {keep_rounds}, it has to be at least 1, or None for all")
        if clients is not None and not all(isinstance(client, int) and client >= 0 for client in clients):
            raise InputError(f"Record: clients is {clients}, it has to hold numbers from 0")
        super().__init__(strategy)
        kept = RetentionPolicy(keep_rounds, None if clients is None else frozenset(clients), int(keep_free * 1e9))
        self.recorder = MessageRecorder(strategy, Path(path), kept)
        self.own_configure_train, self.own_aggregate_train = strategy.configure_train, strategy.aggregate_train

    def start(self, *args: Any, **options: Any) -> Result:
        """Call the strategy's own `start`, and record the methods that it calls on itself."""
        hooks = {"configure_train": self.configure_train, "aggregate_train": self.aggregate_train}
        attributes = vars(self.strategy)
        before = {name: attributes[name] for name in hooks if name in attributes}
        attributes.update(hooks)
        atexit.register(self.recorder.finish)  # Ctrl-C ends a simulation without its thread, in which this runs
        try:
            return self.strategy.start(*args, **options)
        finally:
            for name in hooks:
                del attributes[name]
            attributes.update(before)
            self.finish()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        messages = list(self.own_configure_train(server_round, arrays, config, grid))
        self.recorder.sent(server_round, arrays, messages)
        return messages

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        replies = list(replies)
        self.recorder.returned(replies)  # first: strategies may write into replies
        arrays, metrics = self.own_aggregate_train(server_round, replies)
        self.recorder.ended(arrays)
        return arrays, metrics

    def finish(self) -> None:
        """Wait until everything is on the disk. `start` does so; call it after rounds that you run by hand."""
        self.recorder.finish()

    def __getattr__(self, name: str) -> Any:
        if name in self.OWN:  # missing while this object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.OWN:
            super().__setattr__(name, value)
        else:
            setattr(self.strategy, name, value)


GLOBAL, COUNTS = "global", "counts.json"
RULE = "FOLDER/round_1/global.pt, FOLDER/round_1/CLIENT.pt, FOLDER/round_2/global.pt, …"


def recording_of(folder: Path) -> Path:
    """Write a recording beside a folder of checkpoints, and return its path. Return any other folder unchanged.

    Raise InputError for a round without `global`, and for a file that is no checkpoint, or no counts.
    """
    if (folder / CONTENTS).exists() or not (rounds := _rounds(folder)):
        return folder
    place, problems = folder.with_name(f"{folder.name}-recording"), Problems()
    sent = {number: _arrays(_only(path)) for number, path in rounds.items()}
    last = [path for path in folder.iterdir() if path.stem == GLOBAL]
    nodes: dict[str, int] = {}
    seen = []
    for number, path in rounds.items():
        beside = (GLOBAL, COUNTS.removesuffix(".json"))
        replies = sorted(file for file in path.iterdir() if file.stem not in beside and not file.name.startswith("."))
        counts = _counts(path / COUNTS, [file.stem for file in replies])
        for file in replies:
            if twice := [other.name for other in replies if other.stem == file.stem][1:]:
                raise InputError(f"{str(path)!r} has {file.name!r} and {twice[0]!r}, of one client: keep one of them")
            nodes.setdefault(file.stem, len(nodes))
        final = sent.get(number + 1) or (_arrays(last[0]) if last and number == max(rounds) else None)
        to = {nodes[file.stem]: sent[number] for file in replies}
        back = [Reply(nodes[file.stem], _arrays(file), counts.get(file.stem), file.stem) for file in replies]
        seen.append(ServerRound(number, sent[number], to, back, final))
    writer = RecordingWriter(place, "unknown", RetentionPolicy(free=0), problems)
    try:
        for one in seen:
            writer.write(one)
    finally:
        writer.end()
    if lines := problems.lines():
        raise InputError(f"{str(place)!r} could not be written: {lines[0]}")
    return place


def _rounds(folder: Path) -> dict[int, Path]:
    """Return the folders of rounds by number, in order."""
    found = [(re.fullmatch(r"round_?0*(\d+)", path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return dict(sorted((int(match[1]), path) for match, path in found if match and path.is_dir()))


def _only(folder: Path) -> Path:
    """Return the file of the checkpoint that a round starts from."""
    found = [path for path in folder.iterdir() if path.stem == GLOBAL]
    if len(found) != 1:
        raise InputError(f"{str(folder)!r} has {len(found)} files `{GLOBAL}`, one is needed: {RULE}")
    return found[0]


def _counts(path: Path, clients: list[str]) -> dict[str, int]:
    """Return the number of images of each client that the file names. Raise InputError for another form or name."""
    if not path.exists():
        return {}
    try:
        counts = TypeAdapter(dict[str, NonNegativeInt]).validate_json(path.read_bytes())
    except ValidationError as error:
        fault = first_fault(error)["msg"]
        raise InputError(f'{str(path)!r}: {fault}: write the images of each client, {{"alice": 16}}') from None
    if others := [name for name in counts if name not in clients]:
        raise InputError(f"{str(path)!r}: the round has no client {others[0]!r}{did_you_mean(others[0], clients)}")
    return counts


def _arrays(path: Path) -> Arrays:
    return dict(ArrayRecord(read_checkpoint(path)).items())
