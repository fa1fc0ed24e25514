"""End Ray's processes with this one, however it ends.

Ray's raylet and GCS end with the process that started them, its workers some seconds later. Two idle agents stay for a
minute. A small process of ours notes Ray's processes while Ray starts, then waits at a pipe for the end of this process
or of Ray, and kills the noted ones that still run.
"""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator

import psutil

STARTED_BY_US = ("gcs_server", "raylet")  # all other processes of Ray are children of the raylet
LOOK = 0.2  # seconds between two looks while Ray starts

_reapers: list[subprocess.Popen[bytes]] = []


@contextlib.contextmanager
def reaped() -> Iterator[None]:
    """Start a reaper for the Ray that starts inside."""
    # -P: without this folder in front of Python's own modules; a new session: Ctrl-C and a kill of our group miss it
    command = [sys.executable, "-P", __file__, str(os.getpid())]
    _reapers.append(reaper := subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True))
    try:
        yield
    finally:
        if reaper.stdin is not None:
            with contextlib.suppress(OSError):  # the reaper has been killed
                reaper.stdin.write(b"Ray is up")


def reap() -> None:
    """Have what is left of Ray killed; its reaper then exits."""
    while _reapers:
        _reapers.pop().communicate()


def main(owner: int) -> None:
    roots: set[psutil.Process] = set()
    noted: set[psutil.Process] = set()  # their descendants
    is_up = False
    while not is_up:
        is_up = bool(select.select([sys.stdin], [], [], LOOK)[0])  # or its owner has ended
        with contextlib.suppress(psutil.Error):
            roots |= {child for child in psutil.Process(owner).children() if child.name() in STARTED_BY_US}
        for root in roots:
            with contextlib.suppress(psutil.Error):
                noted.update(root.children(recursive=True))
    sys.stdin.buffer.read()  # returns when nobody holds the other end any more
    for process in (*roots, *noted):  # a raylet that lives would start others
        with contextlib.suppress(psutil.Error):  # it has ended; another process of its number is not killed
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]))
