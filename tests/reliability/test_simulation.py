"""The matrix in a simulation: one run, in which every client of round 1 has its own fault, and so has every attack."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from simulator.rundir.run import Run
from tests.reliability.faults import ATTACKS, CLIENTS, SCORES
from tests.reliability.scenarios import simulated

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """(how the command ended, its run, seconds from the last row to its end)."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.yaml").write_text(yaml.safe_dump(simulated()))
    mark = {"FEDSPILL_TEST": str(folder)}
    arguments = [Path(sys.executable).with_name("fedspill"), "run", folder / "faults.yaml", "--out", folder / "out"]
    ended = subprocess.run(
        arguments, capture_output=True, text=True, env={**os.environ, **mark}, timeout=900, check=False
    )
    last = (folder / "out" / "ledger.jsonl").stat().st_mtime
    return ended, Run(folder / "out"), time.time() - last, mark


@pytest.mark.parametrize("fault", CLIENTS, ids=lambda fault: fault.does)
def test_a_client_that_misbehaves_has_a_row_that_says_how(command, fault):
    clients = pd.read_parquet(command[1].path / "clients.parquet").set_index(["round", "client"])
    check(clients.loc[(1, CLIENTS.index(fault))], fault.simulated)


@pytest.mark.parametrize("fault", [*ATTACKS, *SCORES], ids=lambda fault: fault.label)
def test_an_attack_or_a_score_that_misbehaves_has_a_row_that_says_how(command, fault):
    check(command[1].leakage.set_index(["round", "attack"]).loc[(1, fault.label)], fault.simulated)


def test_everything_else_goes_on_and_the_workers_recover(command):
    clients = pd.read_parquet(command[1].path / "clients.parquet")
    assert clients.set_index(["round", "client"]).status.loc[(1, len(CLIENTS))] == "ok"
    assert len(clients.query("round == 2")) == len(CLIENTS) + 1 and (clients.query("round == 2").status == "ok").all()
    healthy = clients.query("round == 1 and status == 'ok'")
    first = command[1].leakage.query("round == 1")
    assert len(healthy) == 2 and (first.num_private == 2 * 3).all()  # images of those whose update went in
    later = command[1].leakage.query("round == 2")
    assert len(later) == len(ATTACKS) + len(SCORES) and (later.status == "ok").all(), later[["attack", "detail"]]


def test_the_command_ends_soon_and_says_how_many_rows_have_no_result(command):
    ended, run, seconds, mark = command
    counts = run.leakage.status.value_counts()
    said = f"{counts['failed'] + counts['timeout']} of {len(run.leakage)} rows have no result"
    assert ended.returncode == 5, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(f"fedspill: {said}"), ended.stderr
    assert f"{counts['failed']} failed" in ended.stderr and f"{counts['timeout']} timeout" in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout and "\x1b" not in ended.stderr
    assert seconds < 30
    deadline = time.monotonic() + 120
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def check(row, outcome):
    assert outcome.fits(row.status, row.detail), (row.status, row.detail)


def marked(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if mark.items() <= process.environ().items():
                found.append(process.name())
        except (psutil.Error, OSError):
            continue
    return found
