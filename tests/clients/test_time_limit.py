"""Time limits, from inside the process that they end."""

import subprocess
import sys
import time

import pytest

from clients.time_limit import OutOfTime, time_limit

STUBBORN = """
import signal, time
from clients.time_limit import last_resort, time_limit
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM])
with last_resort(0.2):
    pass
with last_resort(0.5), time_limit(0.1):
    sum(iter(int, 1))
"""


def test_time_limit_interrupts_and_leaves_nothing_behind():
    with pytest.raises(OutOfTime), time_limit(0.05):
        time.sleep(5)
    with time_limit(0.05):
        pass
    time.sleep(0.1)  # a timer left running would end the test here


def test_the_last_resort_ends_a_process_that_never_looks_up_and_says_where_it_was():
    """`sum` of an endless iterator runs no line of Python, in which a signal or another thread could end it."""
    ended = subprocess.run([sys.executable, "-c", STUBBORN], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "line 8 in <module>" in ended.stderr, ended.stderr
