"""The loop over the cells of a run, without Flower and Ray."""

import os
from types import SimpleNamespace

import pandas as pd
import pytest
from flwr.supercore.task_identity import TaskIdentity

from clients import time_limit
from simulator.evaluation.job import JobResult
from simulator.results.ledger import JOURNAL, Ledger, read_journal
from simulator.run import federation
from simulator.run.display import Display
from simulator.run.plan import make_plan
from simulator.run.run_folder import claimed
from simulator.run.workers import START
from simulator.run_errors import CellsFailed, RunError
from simulator.rundir.run import Run
from simulator.scenario.scenario import load_scenario


class NoJobs:
    """A dispatcher that has nothing to do."""

    pending = ()

    def collect(self, timeout):
        return []

    def shares(self):
        return {}

    def close(self):
        pass


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a run whose cells leave a row of utility; `diverging` names the one whose clients all fail after that."""

    def run_cell(grid, nodes, plan, cell, queue, patience):
        queue.ledger.add(cell.name, utility=[{"round": 0, **cell.swept}])
        if cell.name == start.diverging:
            raise RunError("round 1: 3 of 3 clients failed")
        queue.finish_training(cell.name)

    def start(diverging, sweep="sweep: {training.learning_rate: [0.1, 10.0, 0.05]}"):
        start.diverging = diverging
        path = tmp_path / "s.yaml"
        path.write_text(f"name: s\n{sweep}\n")
        plan = make_plan(load_scenario(path), tmp_path / "out")
        with claimed(plan):
            federation.run_federation(None, plan, Display())

    monkeypatch.setattr(federation, "run_cell", run_cell)
    monkeypatch.setattr(federation, "identify_nodes", lambda grid, clients: {})
    monkeypatch.setattr(federation, "start_ray", lambda engine: None)
    monkeypatch.setattr(federation, "Dispatcher", lambda workers, beside: NoJobs())
    monkeypatch.setattr(federation, "BackgroundDispatcher", lambda dispatcher: dispatcher)
    return start


def test_a_cell_that_fails_keeps_none_of_the_others_from_running(tmp_path, start):
    with pytest.raises(CellsFailed, match=r"^1 of 3 settings failed: learning_rate=10.0 .*3 of 3 clients failed"):
        start("learning_rate=10.0")
    assert read_journal(tmp_path / "out" / JOURNAL).done == {"learning_rate=0.1", "learning_rate=0.05"}
    rows = pd.read_parquet(tmp_path / "out" / "utility.parquet")
    assert rows["training.learning_rate"].tolist() == [0.05, 0.1, 10.0]  # what the failed cell had found is kept
    assert "1 of 3 settings did not end: learning_rate=10.0; the command" in Run(tmp_path / "out").stopped


def test_a_run_without_a_sweep_says_why_it_failed_and_no_more(start):
    with pytest.raises(CellsFailed, match=r"^round 1: 3 of 3 clients failed$"):
        start("", sweep="")


@pytest.fixture
def grid(monkeypatch):
    """A grid of so many nodes, from number 5000 on, which say who they are; some say something else, by number.
    at_a_time: how many have answered at each look."""
    for name in ("_task_id", "_run_id", "_node_id"):  # of this process: a message names its sender
        monkeypatch.setattr(TaskIdentity, name, 1)

    code = federation.code_version()

    def make(count, say=None, at_a_time=None):
        def answer_of(node):
            identity = {"partition-id": node - 5000, "code": code}
            said = (say or {}).get(node - 5000, {"identity": identity})
            broken, content = isinstance(said, str), SimpleNamespace(config_records=said)
            error = SimpleNamespace(reason=said)
            metadata = SimpleNamespace(src_node_id=node, reply_to_message_id=node)
            return SimpleNamespace(has_error=lambda: broken, error=error, content=content, metadata=metadata)

        def push(messages):
            return [message.metadata.dst_node_id for message in messages]

        def pull(missing):
            return [answer_of(node) for node in sorted(missing)[:at_a_time]]

        nodes = range(5000, 5000 + count)
        return SimpleNamespace(get_node_ids=lambda: nodes, push_messages=push, pull_messages=pull)

    return make


class Clock:
    """Passes by what is slept."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(federation, "time", made)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return made


def test_nodes_that_share_a_few_workers_are_waited_for_as_long_as_one_answers(grid, clock, monkeypatch):
    monkeypatch.setattr(federation, "LOOK", 60.0)  # an answer a minute: ten hours
    assert federation.identify_nodes(grid(600, at_a_time=1), 600) == {i: 5000 + i for i in range(600)}
    assert clock.now > 30_000


@pytest.mark.parametrize(("load", "waited"), [(0.0, 300), (20.0, 3000)])
def test_nodes_that_do_not_answer_are_waited_for_longer_on_a_busy_machine(grid, clock, monkeypatch, load, waited):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(time_limit, "CORES", 2)
    with pytest.raises(RunError, match=r"^0 of 3 nodes answered, none for 300 s: do they still run"):
        federation.identify_nodes(grid(3, at_a_time=0), 3)
    assert clock.now == pytest.approx(waited, abs=1)


def test_a_worker_that_does_not_come_up_is_noticed_before_nodes_are_given_up():
    """Whoever waited for that worker is answered by another one afterwards, which has to come up, too."""
    assert federation.ANSWER_WAIT > 2 * START


STRANGE = {
    "an error": ("no such\nmodule", "a client cannot start: no such module"),
    "nothing": ({}, "different versions"),
    "another version": ({"identity": {"code": "abc", "partition-id": 1}}, "different versions"),
    "no number": ({"identity": {"code": None, "partition-id": "\x1b[31mone"}}, "says partition-id = 'one'"),
    "a number without end": ({"identity": {"code": None, "partition-id": "9" * 5000}}, "says partition-id = '999"),
}


@pytest.mark.parametrize("says", STRANGE)
def test_a_node_that_cannot_be_a_client_stops_only_who_needs_it(grid, says):
    said, reason = STRANGE[says]
    if isinstance(said, dict) and said.get("identity", {}).get("code", "") is None:
        said["identity"]["code"] = federation.code_version()
    with pytest.raises(RunError, match=reason):
        federation.identify_nodes(grid(3, say={1: said}), 3)
    assert federation.identify_nodes(grid(3, say={2: said}), 2) == {0: 5000, 1: 5001}


def test_a_sweep_goes_on_behind_a_cell_whose_clients_diverge(tmp_path, run_scenario, monkeypatch):
    looks = []
    monkeypatch.setattr(federation, "gc", SimpleNamespace(collect=lambda: looks.append("messages hold each other")))
    content = {
        "name": "diverges",
        "data": {"public": 20, "test": 20},
        "partition": {"images": 2},
        "model": {"width": 16, "depth": 1},
        "federation": {"rounds": 1, "clients": 1},
        "adversary": {"attacks": [{"name": "mean_image"}]},
        "sweep": {"training.learning_rate": [0.1, 1e30, 0.05]},
    }
    with pytest.raises(CellsFailed, match="its training diverged"):
        run_scenario(content, tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out" / "leakage.csv").set_index("training.learning_rate").status
    assert rows.to_dict() == {0.05: "ok", 0.1: "ok", 1e30: "failed"}
    assert len(looks) == 5  # after the round of each cell that has one, and before the first of all three


def test_an_attack_of_an_interrupted_run_is_made_again_only_where_it_reads_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(federation, "start_ray", lambda engine: None)
    sent, shown, ended = [], [], []
    dispatcher = SimpleNamespace(submit=sent.append)
    monkeypatch.setattr(federation, "Dispatcher", lambda workers, beside: dispatcher)
    monkeypatch.setattr(federation, "BackgroundDispatcher", lambda dispatcher: dispatcher)

    def begun():
        display = SimpleNamespace(attack_done=lambda row, subject: shown.append(row))
        queue = federation.AttackQueue(SimpleNamespace(attack_workers=1), Ledger(tmp_path), display)
        queue.retentions[""] = SimpleNamespace(end=ended.append)
        return queue

    def job(client, of):
        columns = {"round": 1, "client": client, "threat_model": "server", "attack": "ntk"}
        return SimpleNamespace(settings=SimpleNamespace(cell=""), name=client, columns=columns, of=of, subject="")

    queue = begun()
    for client, status in ((0, "ok"), (1, "ok"), (2, "failed")):  # the run stopped before the last one ended
        row = job(client, "").columns | {"status": status, "seconds": client}
        queue.note(job(client, "as before"), JobResult([row], []))
    queue = begun()
    again = [job(0, "as before"), job(1, "other weights"), job(2, "as before")]
    for one in again:
        queue.submit(one)
    assert sent == again[1:] and ended == [again[0].name] and shown[0]["client"] == 0
    queue.note(again[1], JobResult([again[1].columns | {"status": "ok", "seconds": 7}], []))
    assert queue.ledger.tables()["leakage"].seconds.tolist() == [0, 7]


class ThreeAttacks(NoJobs):
    """A dispatcher in which one of three attacks ends whenever it is asked."""

    def __init__(self):
        cell = SimpleNamespace(cell="cell")
        self.pending = [SimpleNamespace(settings=cell, name=name, columns={}, of="", subject="") for name in range(3)]

    def collect(self, timeout):
        return [(self.pending.pop(0), SimpleNamespace(leakage=[{}], _asdict=dict))]


@pytest.mark.parametrize(("allowed", "left"), [(30, [0, 1, 2]), (20, [1, 2]), (11, [2]), (10, [2]), (9, [])])
def test_training_waits_while_too_many_checkpoints_wait_for_attacks(monkeypatch, allowed, left):
    """Each of three attacks holds ten checkpoints."""
    attacks = ThreeAttacks()
    monkeypatch.setattr(federation, "start_ray", lambda engine: None)
    monkeypatch.setattr(federation, "Dispatcher", lambda workers, beside: attacks)
    monkeypatch.setattr(federation, "BackgroundDispatcher", lambda dispatcher: dispatcher)
    nothing = SimpleNamespace(put=lambda *rows, **tables: None, done=set(), attack_done=print, attacks_running=print)
    queue = federation.AttackQueue(SimpleNamespace(attack_workers=1), nothing, nothing)

    class Retention:
        end = print
        waiting = property(lambda self: 10 * len(attacks.pending))

    queue.retentions["cell"] = Retention()
    queue.catch_up(allowed)
    assert [job.name for job in attacks.pending] == left
