"""`flwr run .`: the native route of a Flower user, on the quickstart."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

PROJECT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


def processes_with(marker):
    """Ids of processes that have `marker` in their environment: the local SuperLink that `flwr run` leaves behind."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                yield int(folder.name)
        except OSError:  # ended meanwhile, or not ours
            continue


@pytest.fixture
def flower(tmp_path):
    """Run a flwr command with a home of its own; ends the SuperLink that it started."""
    home = tmp_path / "flower"
    home.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }

    def run(*args):
        command = [BIN / "flwr", *map(str, args)]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=PROJECT, timeout=400, check=False
        )

    yield run
    for pid in processes_with(f"FLWR_HOME={home}"):
        os.kill(pid, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the SuperLink to end through /proc")
def test_flwr_run_on_the_quickstart(flower, tmp_path):
    short = tmp_path / "short.yaml"
    short.write_text(
        f"extends: {PROJECT / 'scenarios' / 'quickstart.yaml'}\n"
        "adversary: {attacks: [{name: ntk, kernel: hybrid, iterations: 200}]}\n"
    )
    out = tmp_path / "out"
    result = flower(
        "run", ".", "--stream", "--federation-config", "num-supernodes=3",
        "--run-config", f"scenario='{short}' out='{out}'",
    )  # fmt: skip
    status = json.loads(flower("list", "--format", "json").stdout)["runs"][0]["status"]
    assert status == "finished:completed", result.stdout[-2000:]  # the exit code of --stream says nothing
    table = pd.read_csv(out / "leakage.csv")
    assert len(table) == 8 and (table.status == "ok").all()
    assert sorted(table.threat_model.unique()) == ["observer", "server"]
    assert (out / "report.html").exists()
