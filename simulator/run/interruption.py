"""How Ctrl-C and SIGTERM end a run or an audit."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from simulator.run.display import Display


@contextlib.contextmanager
def interruptible(display: Display) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process at once, with exit codes 130 and 143.

    Flower would wait for its server's thread, that is until the run is done, and Ray for locks that the interrupted
    call holds. Rows and files are complete when they are written, so leaving at any time loses nothing but the attacks
    and the rounds in progress; `janitor` ends what was started.
    """

    def leave(signum: int, frame: Any) -> None:
        for one in before:
            signal.signal(one, lambda again, frame: os._exit(128 + again))
        display.stop()
        print("fedspill: interrupted; the same command goes on from here", file=sys.stderr, flush=True)
        os._exit(128 + signum)

    before = {}
    if threading.current_thread() is threading.main_thread():  # signals are the main thread's
        before = {one: signal.signal(one, leave) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
