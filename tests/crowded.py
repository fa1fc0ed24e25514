"""A machine that others keep busy."""

import contextlib
import os
import subprocess
import sys


@contextlib.contextmanager
def crowded(others):
    """Inside, this process shares one core with so many others that never pause."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()
        os.sched_setaffinity(0, before)
