"""Attack jobs on Ray: where they run, and what becomes of those whose worker dies or falls silent."""

import os
import time
from collections import deque

import pytest
import ray

from simulator.evaluation import dispatch
from simulator.evaluation.dispatch import Dispatcher
from simulator.evaluation.job import Job, Setting
from simulator.evaluation.progress_board import ProgressBoard
from simulator.results.keys import ObservationKey
from simulator.run.cluster import stop_ray, worker_environment
from simulator.scenario.scenario import Cell, Scenario
from tests.simulator.evaluation.fake_actor import Handle


class Deadly:
    """Ends the process that unpickles it, as running out of memory would."""

    def __reduce__(self):
        return os._exit, (3,)


def make_job(root, client, timeout=3600.0, **swept):
    """A job without an observation: its row says so."""
    scenario = Scenario.model_validate({"name": "s", "adversary": {"timeout": timeout}})
    return Job(Setting.of(Cell("", swept, scenario)), root, ObservationKey(1, client, "server"), scenario.attacks[0])


@pytest.fixture(scope="module")
def slotless():
    """A cluster that offers no `attack` slots, as one that somebody else started."""
    environment = {"env_vars": worker_environment(threads=1)}
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
    stop_ray()


@pytest.mark.slow
def test_a_worker_that_dies_takes_no_job_but_its_own_with_it(tmp_path, slotless):
    dispatcher = Dispatcher(workers=1)
    found = {}
    try:
        for job in (make_job(tmp_path, 0), make_job(tmp_path, 1, deadly=Deadly()), make_job(tmp_path, 2)):
            dispatcher.submit(job)
        assert len(dispatcher.running) == 1 and len(dispatcher.pending) == 3  # one at a time
        while dispatcher.pending:
            found |= {job.key.client: result.leakage[0]["detail"] for job, result in dispatcher.collect(timeout=60)}
    finally:
        dispatcher.close()
    assert found[1].startswith("the attack's worker died")
    assert all("no observation" in found[client] for client in (0, 2)), found


class FakeRay:
    """A cluster on which nothing finishes. cancelled: what was."""

    exceptions = ray.exceptions

    def __init__(self):
        self.cancelled = []

    def wait(self, references, num_returns, timeout):
        return [], references

    def get(self, answer, timeout):
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
        dispatcher.last_sign, dispatcher.again = time.monotonic(), set()
        dispatcher.ray = FakeRay()
        monkeypatch.setattr(dispatch, "ray", dispatcher.ray)
        return dispatcher

    return start


def heard(dispatcher, job, seconds_ago):
    now, dispatcher.clock[0] = dispatcher.clock[0], dispatcher.clock[0] - seconds_ago
    dispatcher.board.alive.remote(job.name)
    dispatcher.clock[0] = now


def test_a_job_that_went_silent_is_given_up_alone(tmp_path, dispatch_to_nowhere):
    hanging, scoring, waiting = (make_job(tmp_path, client, timeout=60.0) for client in range(3))
    dispatcher = dispatch_to_nowhere(hanging, scoring, waiting)
    heard(dispatcher, hanging, 60 + 60 + 5)
    heard(dispatcher, scoring, 60 + 60 - 5)
    dispatcher.last_sign = time.monotonic() - 1e6  # nothing came back for long: the slots are taken
    ((job, result),) = dispatcher.collect(timeout=0)
    assert (job.key.client, result.leakage[0]["status"]) == (0, "timeout")
    assert [job.key.client for job in dispatcher.pending] == [1, 2] and dispatcher.ray.cancelled == [0]


def test_jobs_that_no_worker_ever_takes_are_given_up(tmp_path, dispatch_to_nowhere):
    dispatcher = dispatch_to_nowhere(make_job(tmp_path, 0, timeout=60.0), make_job(tmp_path, 1, timeout=60.0))
    dispatcher.last_sign = time.monotonic() - (60 + 120 - 5)
    assert dispatcher.collect(timeout=0) == []
    dispatcher.last_sign -= 10
    assert [job.key.client for job, _ in dispatcher.collect(timeout=0)] == [0, 1] and not dispatcher.pending


def test_the_bar_shows_what_runs(tmp_path, dispatch_to_nowhere):
    job = make_job(tmp_path, 0)
    dispatcher = dispatch_to_nowhere(job)
    dispatcher.board.progress.remote(job.name, 0.5)
    dispatcher.board.progress.remote("one that was fetched already", 0.9)
    assert dispatcher.shares() == {job.name: 0.5}
