"""The matrix in a deployment: SuperLink and SuperNodes over TLS, each with a key of its own, one of them lost."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable

import pandas as pd
import pytest
import yaml

from tests.reliability.deployment import Deployment, deployed, node_key
from tests.reliability.faults import ATTACKS, CLIENTS, LOST_NODE, SCORES, Fault, Outcome
from tests.reliability.scenarios import deployed as scenario

pytestmark = pytest.mark.slow
OUTCOMES = {fault.does: fault.deployed or fault.simulated for fault in CLIENTS}
FINE, RESULT = Outcome("ok"), Outcome("ok", "…")  # of a client; of an attack, which may have more to say
ENDING = ("attack_raises", "attack_is_killed", "score_raises", "score_calls_os._exit")  # those that take no time


def start_of_a_client() -> float:
    """Seconds that this machine needs for what a SuperNode does for every message: start Python, and import."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import clients.client_app, sklearn.datasets"], check=True)
    return time.monotonic() - start


def run(
    deployment: Deployment,
    rounds: list[list[str]],
    timeout: float,
    attacks: Iterable[Fault],
    lost: int | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The clients table, by round and client, and that of attacks, by round and attack. lost: the node that is switched
    off after the first round."""
    path, out = deployment.folder / "scenario.yaml", deployment.folder / "out"
    path.write_text(yaml.safe_dump(scenario(rounds, timeout, attacks)))
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
    clients, leakage = (pd.read_parquet(out / f"{table}.parquet") for table in ("clients", "leakage"))
    return clients.set_index(["round", "client"]), leakage.set_index(["round", "attack"])


def unlike(table: pd.DataFrame, round: int, outcomes: list[Outcome]) -> list[tuple[int, str, str]]:
    """The clients, with status and detail, of which the table says something else than these outcomes."""
    rows = [(client, *table.loc[(round, client), ["status", "detail"]]) for client in range(len(outcomes))]
    return [row for row, outcome in zip(rows, outcomes, strict=True) if not outcome.fits(*row[1:])]


def unlike_attacks(table: pd.DataFrame, attacks: Iterable[Fault]) -> list[tuple[tuple[int, str], str, str]]:
    """Those of round 1 of which the table says something else than of the same in a simulation, and of round 2 those
    that are not fine."""
    expected = {(1, fault.label): fault.simulated for fault in attacks}
    expected |= {(2, fault.label): RESULT for fault in attacks}
    rows = {key: tuple(table.loc[key, ["status", "detail"]]) for key in expected}
    return [(key, *row) for key, row in rows.items() if not expected[key].fits(*row)]


def test_strangers_are_refused_faults_are_rows_a_client_that_hung_is_back_and_a_lost_node_is_named(tmp_path):
    """One deployment for all of it: starting one takes most of the time."""
    # who hangs and who is lost cost a time limit, which both have in the second round
    rounds = [["", "sends other shapes", "raises"], ["", "hangs", ""], ["", "", ""]]
    ending = [fault for fault in (*ATTACKS, *SCORES) if fault.label in ENDING]
    with deployed(tmp_path, nodes=3) as deployment:
        node_key(tmp_path / "stranger")
        stranger = deployment.supernode(3, 4, key=tmp_path / "stranger")
        timeout = 10 + 3 * start_of_a_client()  # while the nodes start, so that cores are as busy as in a round
        table, attacks = run(deployment, rounds, timeout, ending, lost=2)
        assert stranger.poll() is not None, "a node whose key nobody registered is still there"
    assert unlike(table, 1, [FINE, OUTCOMES["sends other shapes"], OUTCOMES["raises"]]) == []
    assert unlike(table, 2, [FINE, OUTCOMES["hangs"], LOST_NODE.deployed]) == []
    assert unlike(table, 3, [FINE, FINE, LOST_NODE.deployed]) == []
    assert len(ending) == len(ENDING) and unlike_attacks(attacks, ending) == []
