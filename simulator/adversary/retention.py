"""Which checkpoints stay on the disk while a run goes on."""

from collections import Counter
from collections.abc import Iterable

from simulator.results.storage import CellStore
from simulator.scenario.scenario import Scenario

AHEAD = 4  # rounds that training may be ahead of the attacks, counted in the checkpoints that wait for them


class Retention:
    """Removes what `output.keep: {last: K}` does not keep: checkpoints of older rounds, as soon as no attack will read
    them. Otherwise it removes nothing."""

    def __init__(self, scenario: Scenario, store: CellStore):
        self.scenario, self.store = scenario, store
        self.round = 0  # the last one that has ended
        self.written: dict[str, int] = {}  # by file, the last round that it is a part of
        self.readers: Counter[str] = Counter()  # attacks that have not ended, by file
        self.files: dict[str, tuple[str, ...]] = {}  # of each of these attacks, by its name

    def note(self, name: str, round: int) -> str:
        """A checkpoint was written that is a part of `round` and of none after it. Returns the file."""
        self.written[name] = round
        return name

    def begin(self, attack: str, files: Iterable[str]) -> None:
        """An attack will read these."""
        self.files[attack] = tuple(files)
        self.readers.update(self.files[attack])

    def end(self, attack: str) -> None:
        """An attack reads nothing any more."""
        self.readers.subtract(self.files.pop(attack, ()))
        self._remove()

    def end_round(self, round: int) -> None:
        self.round = round
        self._remove()

    @property
    def waiting(self) -> int:
        """Checkpoints of rounds that are not kept, which attacks will still read."""
        return len(self._old())

    def _old(self) -> list[str]:
        """Checkpoints of rounds that are not kept."""
        last = self.scenario.kept_rounds
        if last is None or self.scenario.looks_back_after(self.round):
            return []
        return [name for name, round in self.written.items() if round <= self.round - last]

    def _remove(self) -> None:
        for name in self._old():
            if not self.readers[name]:
                self.store.remove_checkpoint(name)
                del self.written[name], self.readers[name]
