"""How work that takes too long is ended, from inside its own process.

What it takes is counted in processor seconds, those of all threads of the process: on a machine that others keep busy
it takes as many as on an idle one. By the clock ends what hangs.
"""

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import torch

# Share of a processor below which work hangs rather than waits for its turn. Fifty processes on one core still get as
# much each; a worker of Ray that sleeps takes 0.0024, measured on two busy cores.
HANGING = 0.02
FINEST = 0.02  # seconds between two looks at the processor time, at least
# The system's own timer of processor time counts by ticks: of two threads that took turns it once missed 30 % or more.
CORES = os.cpu_count() or 1
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
    begun, gradients = time.process_time(), torch.is_grad_enabled()
    used, next_look = begun, time.monotonic() + seconds  # of the last look at whether it computes, and of the next

    def end(*said: str) -> NoReturn:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise error(*said)

    def look(signum: int, frame: object) -> None:
        nonlocal used, next_look
        now, left = time.process_time(), begun + seconds - time.process_time()
        if left <= 0:
            end()
        if time.monotonic() >= next_look:
            if now - used < HANGING * seconds:
                end("it waits and does not compute")
            used, next_look = now, time.monotonic() + seconds
            alive()
        set_timer(left)

    def set_timer(left: float) -> None:
        """Go off before threads on all cores can have used what is left, and no later than at the next look."""
        wait = min(left / CORES, next_look - time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, max(wait, FINEST))

    previous = signal.signal(signal.SIGALRM, look)
    set_timer(seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        torch.set_grad_enabled(gradients)  # an error raised within torch's own way out of `no_grad` leaves it off
        signal.signal(signal.SIGALRM, previous)


def longest(seconds: float) -> float:
    """Seconds by the clock after which even the busiest machine has ended work with this limit."""
    return seconds / HANGING


def unhurried(seconds: float) -> float:
    """Seconds by the clock for what takes at most so many on an idle machine: as many times more as processes want to
    compute here than there are cores."""
    return seconds * max(1.0, os.getloadavg()[0] / CORES)


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
