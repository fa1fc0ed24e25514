import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import yaml

from simulator.cli.main import main
from simulator.run.cluster import stop_ray
from simulator.run.display import Display
from simulator.run.engine import simulate
from simulator.run.plan import make_plan
from simulator.rundir.run import Run
from simulator.scenario.scenario import load_scenario
from tests.capacity import beyond_capacity


@contextlib.contextmanager
def ray_stays_up():
    """Runs inside use the Ray that is there and leave it, with the workers that have imported what attacks need:
    starting both costs eight seconds of processor time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "shutdown", lambda: None)
        yield


@pytest.fixture(scope="session")
def run_scenario():
    """Run a scenario given as a mapping; the same path as `fedspill run`, without its table and figures.

    Where it says nothing of the engine one client trains and one worker attacks at a time: what a second costs, four
    seconds of imports, is more than it saves here. All share a Ray.
    """
    small = {"cpus": os.cpu_count(), "attack_workers": 1}

    def run(content: dict, out: Path) -> Run:
        path = out.with_suffix(".yaml")
        path.write_text(yaml.safe_dump({"engine": small} | content))
        plan = make_plan(load_scenario(path), out)
        with ray_stays_up():
            simulate(plan, Display())
        made = Run(out)
        assert beyond_capacity(made.leakage).empty
        return made

    yield run
    stop_ray()


@pytest.fixture
def fedspill(monkeypatch, capsys):
    """Call the command in this process: starting a new one costs four seconds of imports each time. All calls of a
    test share a Ray."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["fedspill", *map(str, args)])
        capsys.readouterr()
        try:
            with ray_stays_up():
                main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return subprocess.CompletedProcess(args, code, captured.out, captured.err)

    there_before = ray.is_initialized()
    yield call
    if not there_before:
        stop_ray()
