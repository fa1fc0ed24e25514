"""What a process started ends with it, however it ends."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from simulator.run import janitor
from simulator.run.janitor import MARK, end, marked, marking, retire, runs

STARTER = """
import signal, subprocess, sys, time
from simulator.run.janitor import marking
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C, and so do theirs
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
with marking():
    inside = subprocess.Popen(sleep, start_new_session=True)
outside = subprocess.Popen(sleep, start_new_session=True)
print(inside.pid, outside.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_what_is_marked_ends_and_nothing_else(how):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert starter.stdout is not None
    inside, outside = (psutil.Process(int(pid)) for pid in starter.stdout.readline().split())
    try:
        mark = inside.environ()[MARK]
        assert MARK not in outside.environ()
        os.killpg(starter.pid, how)  # the group, as a terminal's Ctrl-C does
        starter.wait()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and marked(mark):
            time.sleep(0.1)
        assert not marked(mark) and outside.is_running()
    finally:
        outside.kill()


def test_who_waits_ends_with_what_was_marked(monkeypatch):
    """A notebook that starts a Ray, ends it and starts the next keeps nobody of the first."""
    monkeypatch.setattr(janitor, "_waiting", [])
    with marking():
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (waiting,) = janitor._waiting
    retire()
    assert left.wait(20) == -signal.SIGKILL and waiting.wait(20) == 0
    assert janitor._waiting == []


TITLED = """
import time, ray
ray._raylet.setproctitle("a title that is written over the environment " * 200)
print("titled", flush=True)
time.sleep(600)
"""


def test_a_process_that_has_written_its_title_over_its_mark_is_found_by_who_started_it(tmp_path):
    """As Ray's agents do."""
    (tmp_path / "t.py").write_text(TITLED)
    (tmp_path / "s.py").write_text("import subprocess, sys\nsubprocess.run([sys.executable, sys.argv[1]])\n")
    command, environment = [sys.executable, tmp_path / "s.py", tmp_path / "t.py"], {**os.environ, MARK: "titled"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as starter:
        assert starter.stdout is not None and starter.stdout.readline()
        (titled,) = psutil.Process(starter.pid).children()
        try:
            assert MARK not in titled.environ()
            assert {one.pid for one in marked("titled")} == {starter.pid, titled.pid}
        finally:
            titled.kill()


OPEN = """
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[1].replace("OWN", str(os.getpid())))
folder.mkdir(parents=True)
file = (folder / "raylet.out").open("w")
print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_what_writes_into_the_folder_of_a_ray_of_ours_needs_no_mark(tmp_path):
    """An agent in its first seconds, whose raylet ended with its owner: no mark, no parent, and nobody has seen it. The
    owner, which writes there, too, gives its exit code in peace."""
    began = "2026-05-01_10-00-00"

    def opened(name):
        agent = subprocess.Popen([sys.executable, "-c", OPEN, tmp_path / name], stdout=subprocess.PIPE)
        assert agent.stdout is not None and agent.stdout.readline()
        return agent

    owner = opened(f"session_{began}_500000_OWN/logs")
    names = {
        f"session_{began}_500000_{owner.pid}/agents": True,
        f"session_{began}_400000_{owner.pid}/agents": False,  # of an earlier process of that number
        f"session_{began}_500000_1{owner.pid}/agents": False,
        "mine": False,
    }
    agents = [opened(name) for name in names]
    try:
        known = [psutil.Process(agent.pid) for agent in agents]
        end("nobody's mark", set())
        assert all(map(runs, known))
        end("nobody's mark", set(), owner.pid, f"{began}_450000")
        assert [not runs(agent) for agent in known] == list(names.values())
        assert runs(psutil.Process(owner.pid))
    finally:
        for agent in (owner, *agents):
            agent.kill()
            agent.communicate()
