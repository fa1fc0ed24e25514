"""What becomes of attack jobs whose worker dies."""

import os
import time

from simulator.evaluation.dispatch import ProcessDispatcher, RayDispatcher
from simulator.evaluation.job import Job
from simulator.results.storage import Sight
from simulator.scenario.scenario import Scenario


class Deadly:
    """Ends the process that unpickles it, as running out of memory would."""

    def __reduce__(self):
        return os._exit, (3,)


def make_job(root, client, timeout=3600.0, **swept):
    """A job without an observation: its row says so."""
    scenario = Scenario.model_validate({"name": "s", "adversary": {"timeout": timeout}})
    path = root / f"client_{client}"
    return Job("", swept, scenario, root, Sight(1, client, "server"), scenario.attacks[0], (client,), (client,), path)


def collect_all(dispatcher):
    found = {}
    while dispatcher.pending:
        found |= {job.sight.client: result.row["detail"] for job, result in dispatcher.collect(timeout=60)}
    return found


def test_a_process_that_dies_takes_no_job_but_its_own_with_it(tmp_path):
    dispatcher = ProcessDispatcher(1)
    try:
        for job in (make_job(tmp_path, 0), make_job(tmp_path, 1, deadly=Deadly()), make_job(tmp_path, 2)):
            dispatcher.submit(job)
        found = collect_all(dispatcher)
        dispatcher.submit(make_job(tmp_path, 3))
        found |= collect_all(dispatcher)
    finally:
        dispatcher.close()
    assert found[1].startswith("the attack's worker died")
    assert all("no observation" in found[client] for client in (0, 2, 3)), found


class FakeRay:
    """A cluster on which nothing finishes. cancelled: what was."""

    def __init__(self):
        self.cancelled = []

    def wait(self, references, num_returns, timeout):
        return [], references

    def cancel(self, reference, force):
        self.cancelled.append(reference)


def dispatch(*jobs):
    dispatcher = RayDispatcher(0.0)
    dispatcher.ray, dispatcher.jobs = FakeRay(), {job.sight.client: job for job in jobs}
    return dispatcher


def silent_for(job, seconds):
    """The job, last heard of so many seconds ago."""
    job.progress_path.touch()
    os.utime(job.progress_path, (time.time() - seconds,) * 2)
    return job


def test_a_job_that_went_silent_is_given_up_alone(tmp_path):
    hanging = silent_for(make_job(tmp_path, 0, timeout=60.0), seconds=60 + 120 + 5)
    scoring = silent_for(make_job(tmp_path, 1, timeout=60.0), seconds=60 + 120 - 5)
    dispatcher = dispatch(hanging, scoring, make_job(tmp_path, 2, timeout=60.0))
    dispatcher.last_sign = time.monotonic() - 1e6  # nothing came back for long: the slots are taken
    ((job, result),) = dispatcher.collect(timeout=0)
    assert (job.sight.client, result.row["status"]) == (0, "timeout")
    assert [job.sight.client for job in dispatcher.pending] == [1, 2] and dispatcher.ray.cancelled == [0]


def test_jobs_that_no_worker_ever_takes_are_given_up(tmp_path):
    dispatcher = dispatch(make_job(tmp_path, 0, timeout=60.0), make_job(tmp_path, 1, timeout=60.0))
    dispatcher.last_sign = time.monotonic() - (60 + 120 - 5)
    assert dispatcher.collect(timeout=0) == []
    dispatcher.last_sign -= 10
    assert [job.sight.client for job, _ in dispatcher.collect(timeout=0)] == [0, 1] and not dispatcher.pending
