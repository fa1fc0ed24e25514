"""Nothing that we start outlives us: a small process that waits for the end of this one, however it comes, and then
ends what carries our mark, or writes into the folder of our Ray.

Ray starts a dozen processes. One that is killed, or left by Ctrl-C in the seconds of its start, cannot end them; some
notice after a minute, and the same command would have to share the machine with them until then.
"""

import contextlib
import os
import re
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import psutil

MARK = "FEDSPILL_OWNER"  # in the environment of what we start
PATIENCE = 10.0  # seconds in which a process that is ended may start another
LOOK = 2.0  # seconds between two looks at what carries the mark
SESSION = re.compile(r"/session_([\d_-]+)_(\d+)/")  # when a Ray began, and the process that began it
TIME = "%Y-%m-%d_%H-%M-%S_%f"

_waiting: list[subprocess.Popen[bytes]] = []  # the one that waits for this process, once there is one


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """What is started inside, and what that starts, ends when this process does."""
    mark = secrets.token_hex(16)
    since = datetime.now().strftime(TIME)
    # -P: without this folder in front of Python's own modules
    command = [sys.executable, "-P", __file__, mark, str(os.getpid()), since]
    # in a session of its own neither Ctrl-C nor a kill of our group reaches it
    _waiting.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))
    os.environ[MARK] = mark
    try:
        yield
    finally:
        del os.environ[MARK]


def retire() -> None:
    """What was marked is over: whoever waits for the end of this process ends what is left of it now, and itself. A
    notebook that starts one Ray after the other would collect them."""
    while _waiting:
        pipe = _waiting.pop().stdin
        if pipe is not None:
            with contextlib.suppress(OSError):  # it has gone before
                pipe.write(b"this process goes on")
                pipe.close()


def marked(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark, and what they have started: Ray's agents write their titles over their
    environment, and the mark with it."""
    everybody = list(psutil.process_iter(["environ", "ppid"]))
    children: dict[int, list[psutil.Process]] = {}
    for process in everybody:
        children.setdefault(process.info["ppid"], []).append(process)
    found: dict[int, psutil.Process] = {}
    waiting = [process for process in everybody if (process.info["environ"] or {}).get(MARK) == mark]
    while waiting:
        process = waiting.pop()
        if process.pid not in found:
            found[process.pid] = process
            waiting += children.get(process.pid, [])
    return list(found.values())


def writers(owner: int, since: str) -> list[psutil.Process]:
    """The processes that have a file open in the folder of a Ray that `owner` began at that time or later.

    An agent that has written over its mark is nobody's child once its raylet has gone, and that goes with its owner.
    """

    def ours(path: str) -> bool:
        return any(time >= since and int(pid) == owner for time, pid in SESSION.findall(path))

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # the owner itself may be at its own end, and has an exit code to give
            if process.pid != owner and any(ours(file.path) for file in process.open_files()):
                found.append(process)
    return found


def end(mark: str, seen: set[psutil.Process], owner: int | None = None, since: str = "") -> None:
    """Kill what carries the mark, what was seen of it before, and what writes for an owner that is no more, until
    nothing is left."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        writing = [] if owner is None else writers(owner, since)
        found = [one for one in seen.union(marked(mark), writing) if runs(one)]
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1.0)


def runs(process: psutil.Process) -> bool:
    """Whether it is this one still, and no other of the same number."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def watch(mark: str) -> tuple[set[psutil.Process], bool]:
    """Wait until who started this one ends, or is done with what it marked. Returns what was seen until then, and
    whether it goes on."""
    seen: set[psutil.Process] = set()
    while not select.select([sys.stdin], [], [], LOOK)[0]:  # readable, too, when nobody holds the other end any more
        seen = {one for one in seen.union(marked(mark)) if runs(one)}
    return seen, bool(sys.stdin.buffer.read())


def main(mark: str, owner: str, since: str) -> None:
    seen, goes_on = watch(mark)
    if goes_on:  # and may have begun another Ray
        end(mark, seen)
    else:
        end(mark, seen, int(owner), since)


if __name__ == "__main__":
    main(*sys.argv[1:])
