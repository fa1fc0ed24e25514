"""A cluster of two nodes, each with a temporary folder of its own, that only who has the token can use; one is lost."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time

import pandas as pd
import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from simulator.evaluation.dispatch import Dispatcher
from simulator.results.disk import load_images
from simulator.run.cluster import require_token, start_ray, stop_ray
from simulator.scenario.sections import EngineConfig
from tests.simulator.evaluation.observed import make_job, observed_run

COMMAND = [sys.executable, "-c", "from simulator.cli.main import main; main()", "run"]
SCENARIO = {
    "name": "two_nodes",
    "data": {"public": 50, "test": 50},
    "partition": {"kind": "exact", "images": 4},
    "model": {"name": "mlp", "width": 32, "depth": 1},
    "federation": {"rounds": 3, "clients": 3, "timeout": 60},
    "adversary": {"attacks": [{"name": "ntk", "iterations": 100}], "timeout": 60},
    "output": {"figures": False},
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes():
    """(cluster, its second node): every node has room for clients, the second one alone for attacks."""
    stop_ray()
    require_token()
    with tempfile.TemporaryDirectory() as folder:  # short: sockets lie in it
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        second = cluster.add_node(num_cpus=2, resources={"attack": 2}, temp_dir=folder)
        try:
            yield cluster, second
        finally:
            stop_ray()
            cluster.shutdown()


class Gate:
    """Keeps tasks waiting until it is opened."""

    def __init__(self):
        self.opened = asyncio.Event()

    async def open(self):
        self.opened.set()

    async def wait(self):
        await self.opened.wait()
        return True


def test_workers_need_no_file_of_the_run(tmp_path, nodes):
    """The jobs' files travel; they are gone when the attacks start, on the node that has slots, and only the sender has
    the folder to which the results come back."""
    store = observed_run(tmp_path / "run")
    start_ray(EngineConfig(address=nodes[0].address))
    try:
        gate = ray.remote(num_cpus=0)(Gate).remote()
        dispatcher = Dispatcher(workers=None)
        work, options = dispatcher.task._function, {"num_cpus": 0, "resources": {"attack": 1}}
        dispatcher.task = ray.remote(**options)(lambda *sent: ray.get(gate.wait.remote()) and work(*sent))
        for client in range(3):
            dispatcher.submit(make_job(store.root, client))
        # what the round started with, once for all, and what each of the three returned
        checkpoints = sorted(store.checkpoints.glob("*.safetensors"))
        assert len(checkpoints) == 4 and sorted(dispatcher.held) == checkpoints
        store.checkpoints.rename(store.root / "hidden")
        ray.get(gate.open.remote())
        found = []
        while dispatcher.pending:
            found += dispatcher.collect(timeout=60)
        assert not dispatcher.held
        dispatcher.close()
    finally:
        stop_ray()
    assert [result.leakage[0]["status"] for _, result in found] == ["ok"] * 3
    for job, _ in found:
        assert load_images(store.reconstruction_path(job.key, "mean_image")).shape[1:] == (1, 8, 8)


def test_a_run_goes_on_without_a_node_that_is_lost(tmp_path, nodes):
    """Whatever it costs has a row that says so."""
    cluster, second = nodes
    cluster.add_node(num_cpus=1, resources={"attack": 1})
    run = start(tmp_path, cluster)
    try:
        await_attacks(tmp_path / "out" / "ledger.jsonl", run)
        cluster.remove_node(second, allow_graceful=False)
        said, _ = run.communicate(timeout=600)
    finally:
        run.kill()
    rows = pd.read_csv(tmp_path / "out" / "leakage.csv")
    assert sorted(zip(rows["round"], rows.client, strict=True)) == [(r, c) for r in (1, 2, 3) for c in range(3)]
    failed = rows[rows.status != "ok"]
    assert failed.detail.notna().all() and len(failed) < len(rows) / 2  # a node of two, and not in every round
    assert (rows[rows["round"] == 3].status == "ok").all(), "a lost node costs nobody anything two rounds later"
    assert run.returncode == (5 if len(failed) else 0), said
    assert not len(failed) or "failed in" in said or "out of time" in said


def start(folder, cluster):
    """`fedspill run` on the cluster, in a process of its own; a client at a time on each of the two large nodes."""
    (folder / "s.yaml").write_text(yaml.safe_dump(SCENARIO | {"engine": {"address": cluster.address, "cpus": 2}}))
    command = [*COMMAND, "s.yaml", "--out", "out"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, **pipes)


def await_attacks(journal, run, seconds=300):
    """Until the first attacks are in, when others are under way."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and run.poll() is None:
        lines = journal.read_text().splitlines() if journal.exists() else []
        if any(json.loads(line).get("table") == "leakage" for line in lines):
            return
        time.sleep(0.2)
    raise AssertionError(f"no attack within {seconds} s: {run.poll()}")
