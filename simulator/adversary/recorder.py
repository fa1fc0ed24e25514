"""Record a federation for the adversary: checkpoints, and the observations that threat models make of them."""

from collections.abc import Callable, Sequence

from attacks import Knowledge
from attacks.interface.observation import State
from clients.data.partition import FederatedData
from clients.defenses.guarantee import Guarantee, worst
from simulator.adversary.grant import defense_facts, grant
from simulator.adversary.reply import ClientReply
from simulator.evaluation.job import Job, JobResult, JobSettings, empty_result
from simulator.results.keys import ALL, ObservationKey, RecordedObservation
from simulator.results.observation_writer import ObservationWriter, Retention
from simulator.results.storage import CellStore, client_name, global_name
from simulator.results.threat_models import CheckpointSource, RoundFiles, View
from simulator.scenario.scenario import Cell


class CellRecorder:
    """The adversary of one cell: it records first, and attacks what is recorded."""

    def __init__(
        self,
        cell: Cell,
        store: CellStore,
        data: FederatedData,
        submit: Callable[[Job], None],
        note: Callable[[Job, JobResult], None],
    ):
        """submit: runs a job. note: adds the rows of a job that cannot be started."""
        self.cell, self.store, self.data, self.submit, self.note = cell, store, data, submit, note
        self.hides_clients = cell.scenario.hides_clients
        self.views = cell.scenario.views
        self.initial = ""  # file of the checkpoint sent in this round
        self.observations = ObservationWriter(store, self._describe)
        self.retention = Retention(store)
        self.spent: dict[int, tuple[Guarantee, ...]] = {}  # by client, after its last reply

    def begin(self, state: State) -> None:
        """Note the checkpoint that starts the federation."""
        self.initial = self.retention.note(self.note_global(0, state), 1)

    def note_global(self, round: int, state: State) -> str:
        """Return the file of the global checkpoint after `round`; write it if this round or the next is kept."""
        scenario = self.cell.scenario
        if scenario.keeps(round) or scenario.keeps(round + 1):
            return self.store.save_global(round, state)
        return global_name(round)

    def note_sum(self, round: int, state: State) -> str | None:
        """Write the sum that secure aggregation shows the server, if the round is kept, and return its file."""
        if not self.cell.scenario.keeps(round):
            return None
        return self.retention.note(self.store.save_sum(round, state), round)

    def save_reply(self, round: int, reply: ClientReply) -> None:
        """Write the checkpoint of a reply; if there is none, give every attack on the client a row that says why."""
        state = reply.state
        self.spent[reply.client] = reply.guarantees or self.spent.get(reply.client, ())
        if state is None:
            for key, view in self._views(round, reply.client):
                self._note(key, view, reply.status, f"the client sent no update: {reply.detail}")
            return
        if not self.cell.scenario.keeps(round):
            return
        if not self.hides_clients:
            self.retention.note(self.store.save_client(round, reply.client, state), round)
        if reply.distilled is not None:
            self.store.save_distilled(round, reply.client, reply.distilled)

    def end_round(self, round: int, healthy: tuple[int, ...], final: str | None, summed: str | None) -> None:
        """Extend the series by this round, and attack its observations. healthy: the clients whose update went in.
        final, summed: the files of the global checkpoint and of the sum of secure aggregation, or None."""
        named = {CheckpointSource.SUM: summed, CheckpointSource.GLOBAL: final}
        of_all = {source: (self.initial, name) for source, name in named.items() if name is not None}
        visible = () if self.hides_clients else healthy
        returned = {client: (self.initial, client_name(round, client)) for client in visible}
        seen = self.observations.extend(round, returned, of_all, healthy)
        self.initial = self.retention.note(final or self.initial, round + 1)
        # attacks on all images take longest: they begin first, so that none runs alone at the end
        everybody = (ALL, *healthy) if healthy else ()  # if the coins chose nobody, noise is released
        for key, view in (pair for client in everybody for pair in self._views(round, client)):
            if view.hidden_by is not None:
                self._note(key, view, "skipped", view.hidden_by)
            elif (view.source, key.client) in seen:
                recorded = self.observations.write(key, view, healthy)
                for job in self._jobs(key, view, self.store.checksum(recorded)):
                    self.retention.begin(job.name, recorded.files)
                    self.submit(job)
        last = self.cell.scenario.kept_rounds
        if last is not None and not self.cell.scenario.looks_back_after(round):
            self.retention.keep_from(round - last + 1)

    def _views(self, round: int, client: int) -> list[tuple[ObservationKey, View]]:
        """Return the views of a client, or of all, with the key of the observation; none in a round without attacks."""
        views = self.views if self.cell.scenario.adversary.attacks_in(round) else []
        return [(ObservationKey(round, client, view.threat_model), view) for view in views if view.shows(client)]

    def _describe(
        self, view: View, seen: RecordedObservation, rounds: Sequence[RoundFiles]
    ) -> tuple[RecordedObservation, Knowledge]:
        """Complete an observation by facts on the defense and by guarantees, and grant what the scenario grants."""
        facts = defense_facts(self.cell, self.data, view, rounds[-1].clients)
        guarantees = worst(self.spent[client] for client in seen.clients)
        recorded = seen.model_copy(update={"defense_facts": facts, "guarantees": guarantees})
        return recorded, grant(self.cell.scenario, self.data, seen.clients, facts)

    def _jobs(self, key: ObservationKey, view: View, of: str = "") -> list[Job]:
        attacks, settings = self.cell.scenario.attacks_by(view.adversary), JobSettings.of(self.cell)
        return [Job(settings, self.store.root, key, attack, of) for attack in attacks]

    def _note(self, key: ObservationKey, view: View, status: str, detail: str) -> None:
        """Give every attack on a single client a row that says why it does not run."""
        for job in self._jobs(key, view):
            self.note(job, empty_result(job, detail, status, num_private=self.data.client_sizes[key.client]))
