"""The matrix in a deployment: SuperLink and SuperNodes over TLS, each with a key of its own, one of them lost."""

import json
import subprocess
import sys
import threading
import time

import pandas as pd
import pytest
import yaml

from tests.reliability.deployment import Deployment, deployed, node_key
from tests.reliability.faults import CLIENTS, LOST_NODE, Outcome
from tests.reliability.scenarios import deployed as scenario

pytestmark = pytest.mark.slow
OUTCOMES = {fault.does: fault.deployed or fault.simulated for fault in CLIENTS}
FINE = Outcome("ok")


def start_of_a_client() -> float:
    """Seconds that this machine needs for what a SuperNode does for every message: start Python, and import."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import clients.client_app, sklearn.datasets"], check=True)
    return time.monotonic() - start


def run(deployment: Deployment, rounds: list[list[str]], timeout: float, lost: int | None = None) -> pd.DataFrame:
    """The clients table, by round and client. lost: the node that is switched off after the first round."""
    path, out = deployment.folder / "scenario.yaml", deployment.folder / "out"
    path.write_text(yaml.safe_dump(scenario(rounds, timeout)))
    ended = threading.Event()

    def lose() -> None:
        journal = out / "ledger.jsonl"
        while not ended.wait(0.1):
            if journal.exists() and '"test_accuracy"' in journal.read_text().partition('"round": 1, "defense"')[2]:
                return deployment.lose(lost)

    watch = threading.Thread(target=lose) if lost is not None else None
    if watch:
        watch.start()
    settings = f"scenario='{path}' out='{out}'"
    patience = 300 + len(rounds) * timeout
    said = deployment.flower("run", ".", "test", "--stream", "--run-config", settings, patience=patience)
    ended.set()
    listed = deployment.flower("list", "test", "--format", "json").stdout
    assert json.loads(listed)["runs"][0]["status"] == "finished:completed", said.stdout[-3000:]
    assert (out / "leakage.csv").exists()
    return pd.read_parquet(out / "clients.parquet").set_index(["round", "client"])


def unlike(table: pd.DataFrame, round: int, outcomes: list[Outcome]) -> list[tuple[int, str, str]]:
    """The clients, with status and detail, of which the table says something else than these outcomes."""
    rows = [(client, *table.loc[(round, client), ["status", "detail"]]) for client in range(len(outcomes))]
    return [row for row, outcome in zip(rows, outcomes, strict=True) if not outcome.fits(*row[1:])]


def test_strangers_are_refused_faults_are_rows_a_client_that_hung_is_back_and_a_lost_node_is_named(tmp_path):
    """One deployment for all of it: starting one takes most of the time."""
    rounds = [["", "hangs", "raises"], ["sends other shapes", "", ""], ["", "", ""]]
    with deployed(tmp_path, nodes=3) as deployment:
        node_key(tmp_path / "stranger")
        stranger = deployment.supernode(3, 4, key=tmp_path / "stranger")
        table = run(deployment, rounds, timeout=10 + 3 * start_of_a_client(), lost=2)
        assert stranger.poll() is not None, "a node whose key nobody registered is still there"
    assert unlike(table, 1, [FINE, OUTCOMES["hangs"], OUTCOMES["raises"]]) == []
    assert unlike(table, 2, [OUTCOMES["sends other shapes"], FINE, LOST_NODE.deployed]) == []
    assert unlike(table, 3, [FINE, FINE, LOST_NODE.deployed]) == []
