"""Which checkpoints stay on the disk while a run goes on.

What the adversary writes down of a federation: checkpoints, and the observations that threat models make of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from attacks.interface.observation import State
from clients.data.partition import FederatedData
from clients.defenses.differential_privacy.guarantee import Guarantee, worst
from simulator.adversary.knowledge import defense_facts, grant
from simulator.adversary.reply import ClientReply
from simulator.evaluation.job import Job, JobResult, Setting, lost
from simulator.results.keys import ALL, ObservationKey
from simulator.results.storage import CellStore
from simulator.results.threat_models import Round, Source, View
from simulator.scenario.scenario import Cell, Scenario

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


class Recorder:
    """The adversary of one cell: it records first, and attacks what is recorded."""

    def __init__(
        self,
        cell: Cell,
        store: CellStore,
        data: FederatedData,
        submit: Callable[[Job], None],
        note: Callable[[Job, JobResult], None],
    ):
        """submit: takes jobs to be run. note: takes the rows of those that cannot be started."""
        self.cell, self.store, self.data, self.submit, self.note = cell, store, data, submit, note
        self.hides_clients = cell.scenario.hides_clients
        self.views = cell.scenario.views
        self.initial = ""  # file of the checkpoint sent in this round
        self.series: dict[tuple[Source, int], list[Round]] = {}
        self.retention = Retention(cell.scenario, store)
        self.spent: dict[int, tuple[Guarantee, ...]] = {}  # by client, after its last reply

    def begin(self, state: State) -> None:
        """Note the checkpoint that starts the federation."""
        self.initial = self.retention.note(self.note_global(0, state), 1)

    def note_global(self, round: int, state: State) -> str:
        """The file of the global checkpoint after `round`; written where somebody will read it, as what the round ended
        with or as what the next one starts from."""
        scenario = self.cell.scenario
        if scenario.keeps(round) or scenario.keeps(round + 1):
            return self.store.save_global(round, state)
        return self.store.global_name(round)

    def note_sum(self, round: int, state: State) -> str:
        """The file of what secure aggregation shows the server of a round."""
        if self.cell.scenario.keeps(round):
            return self.retention.note(self.store.save_sum(round, state), round)
        return self.store.sum_name(round)

    def save_reply(self, round: int, reply: ClientReply) -> None:
        """Write down what a client returned; where that is nothing, give every attack on it a row that says why."""
        state = reply.state
        self.spent[reply.client] = reply.guarantees or self.spent.get(reply.client, ())
        if state is None:
            for key, view in self._views(round, reply.client):
                self._note(key, view, reply.status, reply.detail)
            return
        if not self.cell.scenario.keeps(round):
            return
        if not self.hides_clients:
            self.retention.note(self.store.save_client(round, reply.client, state), round)
        if reply.distilled is not None:
            self.store.save_distilled(round, reply.client, reply.distilled)

    def attacked(self, job: Job) -> None:
        """An attack has ended: it reads no files any more."""
        self.retention.end(job.name)

    def end_round(self, round: int, healthy: tuple[int, ...], final: str | None, summed: str | None) -> None:
        """Extend the series by this round, and attack what the threat models see of it.

        healthy: the clients whose update went in. final, summed: files of the global checkpoint and of the sum of
        secure aggregation; None where there is none.
        """
        seen = self._extend(round, healthy, final, summed)
        self.initial = self.retention.note(final or self.initial, round + 1)
        # attacks on everybody's images take longest: begun first, none of them is left to run alone at the end
        everybody = (ALL, *healthy) if healthy else ()  # where the coins chose nobody, what is released is noise
        for key, view in (pair for client in everybody for pair in self._views(round, client)):
            if view.hidden_by is not None:
                self._note(key, view, "skipped", view.hidden_by)
            elif (view.source, key.client) in seen:
                self._observe(key, view, healthy)
        self.retention.end_round(round)

    def _views(self, round: int, client: int) -> list[tuple[ObservationKey, View]]:
        """What is looked at of a client, or of all, by the key of the observation; nothing in a round left out."""
        views = self.views if self.cell.scenario.adversary.attacks_in(round) else []
        return [(ObservationKey(round, client, view.threat_model), view) for view in views if view.shows(client)]

    def _extend(
        self, round: int, healthy: tuple[int, ...], final: str | None, summed: str | None
    ) -> set[tuple[Source, int]]:
        """Extend the series by this round; returns those that have it."""
        ended: dict[tuple[Source, int], Round] = {}
        for client in healthy if not self.hides_clients else ():
            returned = self.store.client_name(round, client)
            ended[Source.RETURNED, client] = Round(self.initial, returned, (client,))
        for source, name in ((Source.SUM, summed), (Source.GLOBAL, final)):
            if name is not None:
                ended[source, ALL] = Round(self.initial, name, healthy)
        for key, end in ended.items():
            self.series.setdefault(key, []).append(end)
        return set(ended)

    def _observe(self, key: ObservationKey, view: View, healthy: tuple[int, ...]) -> None:
        """Write down what a view shows, with whose images it holds, and start its attacks."""
        series = self.series[view.source, key.client]
        seen = view.observation(key, series, healthy)
        facts = defense_facts(self.cell, self.data, view, series[-1].clients)
        guarantees = worst(self.spent[client] for client in seen.clients)
        recorded = seen.model_copy(update={"defense_facts": facts, "guarantees": guarantees})
        granted = grant(self.cell.scenario, self.data, recorded.clients, recorded.defense_facts)
        self.store.save_observation(recorded, granted)
        for job in self._jobs(key, view):
            self.retention.begin(job.name, recorded.files)
            self.submit(job)

    def _jobs(self, key: ObservationKey, view: View) -> list[Job]:
        attacks, setting = self.cell.scenario.attacks_by(view.adversary), Setting.of(self.cell)
        return [Job(setting, self.store.root, key, attack) for attack in attacks]

    def _note(self, key: ObservationKey, view: View, status: str, detail: str) -> None:
        """Give every attack on a single client a row that says why it does not run."""
        for job in self._jobs(key, view):
            self.note(job, lost(job, detail, status, num_private=self.data.client_sizes[key.client]))
