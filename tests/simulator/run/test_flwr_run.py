"""`flwr run .`: the native route of a Flower user, on the quickstart."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest

from tests.app_folder import PROJECT, copy_app

BIN = Path(sys.executable).parent


def processes_of(home):
    """Those of a Flower home: the local SuperLink that `flwr run` leaves behind."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or not ours
            if process.environ().get("FLWR_HOME") == str(home) and process.pid != os.getpid():
                yield process


@pytest.fixture
def flower(tmp_path):
    """Run a flwr command in the app's folder, with a home of its own; ends the SuperLink that it started."""
    home, app = tmp_path / "flower", copy_app(tmp_path / "app")
    home.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",  # Flower would use a Ray that another test has started
    }

    def run(*args):
        command = [BIN / "flwr", *map(str, args)]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=app, timeout=900, check=False
        )

    yield run
    for process in processes_of(home):
        process.terminate()


@pytest.mark.slow
def test_flwr_run_on_the_quickstart(flower, tmp_path):
    short = tmp_path / "short.yaml"
    short.write_text(
        f"extends: {PROJECT / 'scenarios' / 'quickstart.yaml'}\n"
        "adversary: {attacks: [{name: ntk, kernel: hybrid, iterations: 200}]}\n"
        "engine: {attack_workers: 1}\n"
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
