"""Nothing that we start outlives us: a small process that waits for the end of this one, however it comes, and then
ends what carries our mark.

Ray starts a dozen processes. One that is killed, or left by Ctrl-C in the seconds of its start, cannot end them; some
notice after a minute, and the same command would have to share the machine with them until then.
"""

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

MARK = "FEDSPILL_OWNER"  # in the environment of what we start
PATIENCE = 10.0  # seconds in which a process that is ended may start another

_waiting: list[subprocess.Popen[bytes]] = []  # the one that waits for this process, once there is one


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """What is started inside, and what that starts, ends when this process does."""
    mark = secrets.token_hex(16)
    command = [sys.executable, "-P", __file__, mark]  # -P: without this folder in front of Python's own modules
    # in a session of its own neither Ctrl-C nor a kill of our group reaches it
    _waiting.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))
    os.environ[MARK] = mark
    try:
        yield
    finally:
        del os.environ[MARK]


def marked(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark, and what they have started: Ray's agents write their titles over their
    environment, and the mark with it."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found |= {one.pid: one for one in (process, *process.children(recursive=True))}
    return list(found.values())


def end(mark: str) -> None:
    """Kill what carries the mark until nothing does."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and (found := marked(mark)):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1.0)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # returns when nobody holds the other end any more
    end(sys.argv[1])
