"""What becomes of attack jobs whose worker dies."""

import os

from simulator.dispatch import ProcessDispatcher
from simulator.jobs import Job
from simulator.scenario import Scenario
from simulator.storage import Sight


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
