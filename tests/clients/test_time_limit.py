"""Time limits, from inside the process that they end."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from clients.time_limit import OutOfTime, time_limit
from tests.crowded import crowded

STUBBORN = """
import signal, time
from clients.time_limit import last_resort, time_limit
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM])
with last_resort(0.2):
    pass
with last_resort(0.5), time_limit(0.1):
    sum(iter(int, 1))
"""


def work(seconds):
    """Compute for so many processor seconds of this process."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_time_limit_interrupts_and_leaves_nothing_behind():
    with pytest.raises(OutOfTime, match="it waits and does not compute"), time_limit(0.05):
        time.sleep(5)
    with time_limit(0.05):
        pass
    time.sleep(0.1)  # a timer left running would end the test here
    work(0.1)


def test_what_computes_is_ended_after_its_processor_seconds():
    start = time.process_time()
    with pytest.raises(OutOfTime, match=r"^$"), time_limit(0.3):
        work(5)
    assert 0.25 < time.process_time() - start < 0.6


@pytest.mark.slow
def test_threads_count_together():
    """Two threads of 1 s each are 2 s, whoever waits for them."""

    def compute():
        end = time.thread_time() + 1.0
        while time.thread_time() < end:
            pass

    def both():
        threads = [threading.Thread(target=compute) for _ in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.01)

    with time_limit(3.0):
        both()
    with pytest.raises(OutOfTime), time_limit(1.4):
        both()


@pytest.mark.slow
def test_on_a_busy_core_work_has_the_same_processor_seconds_and_all_the_time_that_takes():
    """Four others on the same core: 0.8 s of work take about 4 s, and the limit is 1.2 s."""
    start, signs = time.monotonic(), []
    with crowded(4):
        with time_limit(1.2, heartbeat=lambda: signs.append(time.monotonic())):
            work(0.8)
        assert time.monotonic() - start > 1.2 and signs  # others know that it is not lost
        with pytest.raises(OutOfTime, match="it waits and does not compute"), time_limit(0.5):
            time.sleep(60)


STARVED = """
import os, time
from clients.time_limit import OutOfTime, time_limit
print(flush=True)
core = int(input())
os.sched_setaffinity(0, {core})
os.nice(19)
begun, spent, said = time.monotonic(), time.process_time(), ""
try:
    with time_limit(0.5):
        while time.monotonic() - begun < 3:
            pass
except OutOfTime as error:
    said = str(error)
print(said, time.process_time() - spent, flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_work_that_a_busy_core_hardly_lets_run_is_not_taken_for_hung():
    """At the lowest priority beside four others of the usual one it gets less than a hundredth of the core."""
    command = [sys.executable, "-c", STARVED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starved:
        starved.stdout.readline()  # it has imported what it needs
        with crowded(4):
            said, _ = starved.communicate(f"{min(os.sched_getaffinity(0))}\n", timeout=600)
    *error, spent = said.split()
    assert not error and float(spent) < 0.1


@pytest.mark.slow
def test_the_last_resort_ends_a_process_that_never_looks_up_and_says_where_it_was():
    """`sum` of an endless iterator runs no line of Python, in which a signal or another thread could end it."""
    ended = subprocess.run([sys.executable, "-c", STUBBORN], capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 1 and "line 8 in <module>" in ended.stderr, ended.stderr


@pytest.mark.slow
def test_the_last_resort_starts_anew_where_it_is_told_to():
    code = "import time\nfrom clients.time_limit import last_resort\nwith last_resort(1.0) as again:\n"
    code += "    for _ in range(5):\n        time.sleep(0.3)\n        again()\n"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, timeout=600, check=False).returncode == 0


def test_gradients_are_as_they_were_wherever_the_time_ended():
    with pytest.raises(OutOfTime), time_limit(0.05):
        torch.set_grad_enabled(False)  # as where the error strikes before `no_grad` has put it back
        while True:
            pass
    assert torch.is_grad_enabled()
