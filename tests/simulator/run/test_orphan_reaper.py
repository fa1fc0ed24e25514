"""Ray's processes end with the one that started them, however that ends."""

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from simulator.run import orphan_reaper
from simulator.run.orphan_reaper import LOOK, reap, reaped

STARTER = """
import signal, subprocess, sys, time
from simulator.run.orphan_reaper import LOOK, reaped
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C, and so do theirs
raylet, moment = sys.argv[1:]
mine = subprocess.Popen(["sleep", "600"], start_new_session=True)
with reaped():
    ray = subprocess.Popen([raylet, "-c", "sleep 600 & sleep 600 & wait"], start_new_session=True)
    time.sleep(10 * LOOK)
    print(mine.pid, ray.pid, flush=True)
    if moment == "it starts":
        time.sleep(600)
time.sleep(600)
"""


@pytest.fixture
def raylet(tmp_path):
    """A shell of that name."""
    shutil.copy(shutil.which("bash"), tmp_path / "raylet")
    return str(tmp_path / "raylet")


def until_ended(processes, seconds=20):
    deadline = time.monotonic() + seconds
    while any(map(runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(runs, processes))


def runs(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("moment", ["it starts", "it is up"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ray_s_processes_end_and_nothing_else(raylet, how, moment):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, raylet, moment],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert starter.stdout is not None
    mine, ray = (psutil.Process(int(pid)) for pid in starter.stdout.readline().split())
    agents = ray.children()
    try:
        assert len(agents) == 2
        os.killpg(starter.pid, how)  # the group, as a terminal's Ctrl-C does
        starter.wait()
        assert until_ended([ray, *agents]) and runs(mine)
    finally:
        mine.kill()


def test_a_notebook_that_starts_one_ray_after_the_other_keeps_no_reaper(raylet, monkeypatch):
    monkeypatch.setattr(orphan_reaper, "_reapers", [])
    with reaped():
        ray = subprocess.Popen([raylet, "-c", "read"], stdin=subprocess.PIPE)
        time.sleep(10 * LOOK)
    (reaper,) = orphan_reaper._reapers
    assert ray.poll() is None and reaper.poll() is None
    reap()
    assert ray.wait(20) == -signal.SIGKILL and reaper.wait(20) == 0 and orphan_reaper._reapers == []
