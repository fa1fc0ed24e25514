"""How work that takes too long is ended, from inside its own process.

What it takes is counted in processor seconds, those of all threads of the process: on a machine that others keep busy
it takes as many as on an idle one. By the clock ends what hangs.
"""

import contextlib
import faulthandler
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import torch

# Share of a processor below which work hangs rather than waits for its turn. Fifty processes on one core still get as
# much each; a worker of Ray that sleeps takes 0.0024, measured on two busy cores.
HANGING = 0.02
LAST_RESORT = 10.0  # seconds that work has to end once its time is over
STDERR = 2


class OutOfTime(TimeoutError):
    """The time is over; no other TimeoutError says so. Its text: that the work hung, where it did."""


@contextlib.contextmanager
def time_limit(
    seconds: float, error: type[BaseException] = OutOfTime, alive: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Raise `error` inside the block after so many processor seconds, or once it hardly computes for as long by the
    clock; only a process's main thread can be interrupted.

    alive: called in between, every so many seconds in which the block did compute, between two lines of its code.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    used, gradients = time.process_time(), torch.is_grad_enabled()

    def end(*said: str) -> NoReturn:
        _set_timers(0)
        raise error(*said)

    def look(signum: int, frame: object) -> None:
        nonlocal used
        before, used = used, time.process_time()
        if used - before < HANGING * seconds:
            end("it waits and does not compute")
        alive()

    handlers = {signal.SIGPROF: lambda signum, frame: end(), signal.SIGALRM: look}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    _set_timers(seconds)
    try:
        yield
    finally:
        _set_timers(0)
        torch.set_grad_enabled(gradients)  # an error raised within torch's own way out of `no_grad` leaves it off
        for number, handler in previous.items():
            signal.signal(number, handler)


def _set_timers(seconds: float) -> None:
    """One goes off once, after so much work; the other again and again, by the clock."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


def longest(seconds: float) -> float:
    """Seconds by the clock after which even the busiest machine has ended work with this limit."""
    return seconds / HANGING


@contextlib.contextmanager
def last_resort(seconds: float) -> Iterator[Callable[[], None]]:
    """End this process where the block goes on after so many seconds, and whatever it holds or blocks: the stacks of
    its threads are written to stderr. Yields what gives it as many seconds again, from then on."""

    def again() -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)

    again()
    try:
        yield again
    finally:
        faulthandler.cancel_dump_traceback_later()
