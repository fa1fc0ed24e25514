"""How work that takes too long is ended, from inside its own process."""

import contextlib
import faulthandler
import signal
import threading
from collections.abc import Iterator

LAST_RESORT = 10.0  # seconds that work has to end once its time is over
STDERR = 2


class OutOfTime(TimeoutError):
    """The time is over; no other TimeoutError says so."""


@contextlib.contextmanager
def time_limit(seconds: float, error: type[BaseException] = OutOfTime) -> Iterator[None]:
    """Raise `error` inside the block after so many seconds; only a process's main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: object) -> None:
        raise error

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def last_resort(seconds: float) -> Iterator[None]:
    """End this process where the block goes on after so many seconds, and whatever it holds or blocks: the stacks of
    its threads are written to stderr."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
