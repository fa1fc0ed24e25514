"""Attack jobs on Ray: where they run, and what becomes of those whose worker dies or falls silent."""

import contextlib
import os
import time
from collections import deque

import pytest
import ray
from ray import cloudpickle

from simulator.evaluation import dispatch
from simulator.evaluation.dispatch import Dispatcher, run_remotely
from simulator.evaluation.job import attack
from simulator.evaluation.progress_board import ProgressBoard, Reporter
from simulator.results.storage import ObservationMetadata
from simulator.run.cluster import stop_ray, worker_environment
from tests.simulator.evaluation.fake_actor import Handle
from tests.simulator.evaluation.observed import make_job, observed_run


class Deadly:
    """Ends the process that unpickles it, as running out of memory would."""

    def __reduce__(self):
        return os._exit, (3,)


@pytest.fixture
def observed(tmp_path):
    return observed_run(tmp_path / "run")


@pytest.fixture(scope="module")
def slotless():
    """A cluster that offers no `attack` slots, as one that somebody else started."""
    stop_ray()
    environment = {"env_vars": worker_environment(threads=1)}
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
    stop_ray()


@pytest.mark.slow
def test_a_worker_that_dies_takes_no_job_but_its_own_with_it(observed, slotless):
    dispatcher, root = Dispatcher(workers=1), observed.root
    found = {}
    try:
        for job in (make_job(root, 0), make_job(root, 1, deadly=Deadly()), make_job(root, 2), make_job(root, 3)):
            dispatcher.submit(job)
        assert len(dispatcher.running) == 1 and len(dispatcher.pending) == 4  # one at a time
        while dispatcher.pending:
            found |= {job.key.client: result.leakage[0] for job, result in dispatcher.collect(timeout=60)}
    finally:
        dispatcher.close()
    assert found[1]["detail"].startswith("the attack's worker died")
    assert [found[client]["status"] for client in range(4)] == ["ok", "failed", "ok", "failed"]
    assert "no observation" in found[3]["detail"]


def test_what_travels_names_no_folder_of_the_run(observed):
    job = make_job(observed.root, 1)
    metadata = ObservationMetadata.read(observed, job.key)
    contents = {label: read() for label, (_, read) in metadata.tensor_files(observed).items()}
    assert str(observed.root).encode() not in cloudpickle.dumps((job.for_workers, metadata, contents))
    assert attack(job.for_workers, metadata, contents, Reporter()).result.leakage[0]["status"] == "ok"


class FakeRay:
    """A cluster on which nothing finishes but what is `ready`. cancelled: what was."""

    exceptions = ray.exceptions

    def __init__(self):
        self.cancelled, self.ready = [], set()

    def wait(self, references, num_returns, timeout):
        return [one for one in references if one in self.ready], [one for one in references if one not in self.ready]

    def get(self, answer, timeout):
        if isinstance(answer, int):  # a reference: its worker is gone
            raise ray.exceptions.WorkerCrashedError
        return answer

    def cancel(self, reference, force):
        self.cancelled.append(reference)


@pytest.fixture
def dispatch_to_nowhere(monkeypatch):
    """A dispatcher whose jobs all run, or wait in Ray, for ever; `clock` is the board's."""

    def start(*jobs):
        dispatcher = Dispatcher.__new__(Dispatcher)
        dispatcher.clock = [0.0]
        dispatcher.board = Handle(ProgressBoard(lambda: dispatcher.clock[0]))
        dispatcher.running, dispatcher.waiting = {job.key.client: job for job in jobs}, deque()
        dispatcher.needs, dispatcher.unsent, dispatcher.held, dispatcher.slotted = {}, [], {}, False
        dispatcher.last_sign, dispatcher.again = time.monotonic(), set()
        dispatcher.limit = 2
        dispatcher.ray = FakeRay()
        monkeypatch.setattr(dispatch, "ray", dispatcher.ray)
        return dispatcher

    return start


def heard(dispatcher, job, seconds_ago):
    now, dispatcher.clock[0] = dispatcher.clock[0], dispatcher.clock[0] - seconds_ago
    dispatcher.board.heartbeat.remote(job.name)
    dispatcher.clock[0] = now


def test_a_worker_that_ended_itself_ran_out_of_time_and_one_that_died_is_replaced_once(tmp_path, dispatch_to_nowhere):
    hanging, unlucky, computing = (make_job(tmp_path, client, timeout=60.0) for client in range(3))
    dispatcher, sent = dispatch_to_nowhere(hanging, unlucky, computing), []
    vars(dispatcher)["_send"] = lambda job: sent.append(job.key.client)
    heard(dispatcher, hanging, 60 + 60)
    heard(dispatcher, unlucky, 5)
    heard(dispatcher, computing, 1e6)  # nobody but itself ends it
    dispatcher.ray.ready = {0, 1}
    ((job, result),) = dispatcher.collect(timeout=0)
    assert (job.key.client, result.leakage[0]["status"]) == (0, "timeout")
    assert sent == [1] and [job.key.client for job in dispatcher.pending] == [2] and not dispatcher.ray.cancelled
    dispatcher.running[1] = unlucky
    ((job, result),) = dispatcher.collect(timeout=0)
    assert (job.key.client, result.leakage[0]["status"]) == (1, "failed") and "died" in result.leakage[0]["detail"]


def test_jobs_wait_as_long_as_others_take_the_slots(tmp_path, dispatch_to_nowhere):
    running, waiting = (make_job(tmp_path, client, timeout=60.0) for client in range(2))
    dispatcher = dispatch_to_nowhere(running, waiting)
    heard(dispatcher, running, 1e6)  # its own worker ends it
    dispatcher.last_sign = time.monotonic() - 1e6  # nothing came back for long
    assert dispatcher.collect(timeout=0) == []
    assert dispatcher.pending == [running, waiting] and not dispatcher.ray.cancelled


@pytest.mark.parametrize(("timeout", "ended_after"), [(1.0, 21), (60.0, 120), (3600.0, 3720)])
def test_a_worker_ends_itself_after_the_limit_and_as_long_again(tmp_path, monkeypatch, timeout, ended_after):
    """At least 20 s and at most 120 s more, and counted anew from every heartbeat."""
    limits, signs = [], []

    @contextlib.contextmanager
    def last_resort(seconds):
        limits.append(seconds)
        yield lambda: signs.append("heartbeat")

    monkeypatch.setattr(dispatch, "last_resort", last_resort)
    monkeypatch.setattr(dispatch, "attack", lambda job, metadata, contents, reporter: reporter.heartbeat())
    run_remotely(make_job(tmp_path, 0, timeout=timeout), None, (), None)
    assert limits == [ended_after] and signs == ["heartbeat"]


@pytest.mark.parametrize("times", [1, 3])
def test_jobs_that_no_worker_ever_takes_are_given_up(tmp_path, dispatch_to_nowhere, monkeypatch, times):
    monkeypatch.setattr(os, "getloadavg", lambda: (times * (os.cpu_count() or 1), 0.0, 0.0))  # a busy machine waits
    dispatcher = dispatch_to_nowhere(make_job(tmp_path, 0, timeout=60.0), make_job(tmp_path, 1, timeout=60.0))
    dispatcher.last_sign = time.monotonic() - (times * (60 + 120) - 5)
    assert dispatcher.collect(timeout=0) == []
    dispatcher.last_sign -= 10
    assert [job.key.client for job, _ in dispatcher.collect(timeout=0)] == [0, 1] and not dispatcher.pending


def test_the_bar_shows_what_runs(tmp_path, dispatch_to_nowhere):
    job = make_job(tmp_path, 0)
    dispatcher = dispatch_to_nowhere(job)
    dispatcher.board.progress.remote(job.name, 0.5)
    dispatcher.board.progress.remote("one that was fetched already", 0.9)
    assert dispatcher.shares() == {"round 1, client 0, server, mean_image": 0.5}


def test_where_no_node_with_slots_is_left_jobs_are_given_up(tmp_path, dispatch_to_nowhere, monkeypatch):
    dispatcher = dispatch_to_nowhere(make_job(tmp_path, 0))
    dispatcher.slotted, dispatcher.without_slots = True, None
    slots = [0]
    monkeypatch.setattr(dispatch, "attack_slots", lambda: slots[0])
    assert dispatcher.collect(timeout=0) == []  # a node may come back
    dispatcher.without_slots -= 60
    slots[0] = 1
    assert dispatcher.collect(timeout=0) == []
    slots[0] = 0
    dispatcher.without_slots = time.monotonic() - 121
    ((_, result),) = dispatcher.collect(timeout=0)
    assert result.leakage[0]["status"] == "failed" and "slots for attacks" in result.leakage[0]["detail"]
