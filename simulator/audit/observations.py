"""The observations of a recording on disk: those of a scenario, and of all rounds together one for each client."""

from simulator.adversary.threat_models import Round, Source, all_views
from simulator.results.keys import ObservationKey
from simulator.results.storage import CellStore
from simulator.scenario.knowledge_values import make_knowledge

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
