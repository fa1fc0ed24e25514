"""Ctrl-C in a terminal: the command ends at once, and the same command goes on where it was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from simulator.results.ledger import JOURNAL, read_journal
from simulator.rundir.run import Run

pytestmark = pytest.mark.slow

CONTENT = {
    "name": "interrupted",
    "data": {"public": 50, "test": 50},
    "partition": {"images": 3},
    "model": {"width": 16, "depth": 1},
    "federation": {"rounds": 1, "clients": 2},
    "adversary": {"threat_models": ["observer"], "attacks": [{"name": "ntk", "iterations": 10}]},
    "output": {"figures": False},
    "sweep": {"seed": list(range(12))},
    "engine": {"cpus": os.cpu_count(), "attack_workers": 1},  # fewer processes to start, twice
}


def test_an_interrupted_command_exits_130_and_goes_on(tmp_path):
    scenario, out = tmp_path / "scenario.yaml", tmp_path / "out"
    scenario.write_text(yaml.safe_dump(CONTENT))
    command = [str(Path(sys.executable).with_name("fedspill")), "run", str(scenario), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and len(read_journal(out / JOURNAL).done) < 3:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    done = read_journal(out / JOURNAL).done
    assert process.returncode == 130 and "Traceback" not in said
    assert said.splitlines()[-1] == f"  fedspill run {scenario} --out {out}"
    assert 3 <= len(done) < 12

    rows = [entry["row"] for entry in read_journal(out / JOURNAL).entries if entry.get("table") == "leakage"]
    seconds = pd.DataFrame(rows).set_index("cell").seconds
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    table = Run(out).leakage.set_index("cell")
    assert len(table) == 12 and (table.status == "ok").all()
    kept = list(done)
    assert (table.seconds[kept] == seconds[kept]).all()  # not attacked a second time
