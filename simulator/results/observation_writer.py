"""Write what threat models see of a federation, for a simulation and for a recording."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from attacks import Knowledge
from simulator.results.keys import ALL, ObservationKey, RecordedObservation
from simulator.results.storage import CellStore
from simulator.results.threat_models import CheckpointSource, RoundFiles, View

Series = tuple[CheckpointSource, int]
"""The name of a series of checkpoints: its source, and the client, or `ALL`."""

Describe = Callable[[View, RecordedObservation, Sequence[RoundFiles]], tuple[RecordedObservation, Knowledge]]
"""Completes an observation and says what its adversary is granted, from the rounds of its series."""


class ObservationWriter:
    """Extends series of checkpoints round by round, and writes the observations that views make of them."""

    def __init__(self, store: CellStore, describe: Describe):
        self.store, self.describe = store, describe
        self.series: dict[Series, list[RoundFiles]] = {}

    def extend(
        self,
        round: int,
        returned: Mapping[int, tuple[str, str]],
        of_all: Mapping[CheckpointSource, tuple[str, str]],
        clients: tuple[int, ...],
    ) -> list[Series]:
        """Add a round to the series that have it, and return their names. returned: the files sent to and returned by
        each client. of_all: the files before and after the round, by source. clients: whose update went in."""
        ended = {
            (CheckpointSource.RETURNED, client): RoundFiles(round, *pair, (client,))
            for client, pair in returned.items()
        }
        ended |= {(source, ALL): RoundFiles(round, *pair, clients) for source, pair in of_all.items()}
        for series, files in ended.items():
            self.series.setdefault(series, []).append(files)
        return list(ended)

    def write(self, key: ObservationKey, view: View, present: Sequence[int] = ()) -> RecordedObservation:
        """Write what a view shows of its series so far. present: the clients of the round."""
        rounds = self.series[view.source, key.client]
        recorded, knowledge = self.describe(view, view.observation(key, rounds, present), rounds)
        self.store.save_observation(recorded, knowledge)
        return recorded

    def forget_before(self, first: int) -> list[tuple[Series, list[int]]]:
        """Take the rounds before `first` out of every series; return the rounds that each series has lost."""
        lost = []
        for series, rounds in list(self.series.items()):
            if gone := [files.round for files in rounds if files.round < first]:
                lost.append((series, gone))
                self.series[series] = [files for files in rounds if files.round >= first]
        return lost


class Retention:
    """Removes the checkpoints of rounds that are no longer kept, as soon as no attack will read them."""

    def __init__(self, store: CellStore):
        self.store = store
        self.first = 0
        """The first round that is kept."""
        self.last_use: dict[str, int] = {}
        """By file, the last round that it is a part of."""
        self.readers: Counter[str] = Counter()
        """By file, the number of attacks that have not ended and read it."""
        self.files: dict[str, tuple[str, ...]] = {}
        """By attack that has not ended, the files that it reads."""

    def note(self, name: str, round: int) -> str:
        """Note that a checkpoint is a part of `round`, and return its name."""
        self.last_use[name] = round
        return name

    def begin(self, attack: str, files: Iterable[str]) -> None:
        self.files[attack] = tuple(files)
        self.readers.update(self.files[attack])

    def end(self, attack: str) -> None:
        """Note that an attack has ended: it reads no files any more."""
        self.readers.subtract(self.files.pop(attack, ()))
        self._remove()

    def keep_from(self, first: int) -> None:
        """Remove what only rounds before `first` need."""
        self.first = first
        self._remove()

    @property
    def waiting(self) -> int:
        """The number of checkpoints of rounds that are not kept, which attacks will still read."""
        return len(self._old())

    def _old(self) -> list[str]:
        return [name for name, round in self.last_use.items() if round < self.first]

    def _remove(self) -> None:
        for name in self._old():
            if not self.readers[name]:
                with contextlib.suppress(OSError):  # one that stays costs room and nothing else
                    (self.store.checkpoints / name).unlink()
                del self.last_use[name], self.readers[name]
