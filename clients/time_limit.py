"""End work that takes too long, from inside its own process.

Limits are in processor seconds of all threads of the process, which a busy machine does not change. Work that hangs
ends by the clock.
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

# Work hangs if it takes less than this share of a processor, the time that it queued for one included. A sleeping
# worker of Ray takes 0.0024, measured on two busy cores.
HANGING = 0.02
# (ran, queued, …) of the main thread, in nanoseconds. Without the time queued, two of 45 attacks at the lowest priority
# beside thirty processes on two cores were taken for hung.
SCHEDULED = "/proc/self/schedstat"
FINEST = 0.02  # seconds between two looks at the processor time, at least
# The system's own timer of processor time counts by ticks: of two threads that took turns it once missed 30 % or more.
CORES = os.cpu_count() or 1
LAST_RESORT = 10.0  # seconds that work has to end once its time is over
STDERR = 2


class OutOfTime(TimeoutError):
    """The time limit is over. The text says so if the work hung."""


@contextlib.contextmanager
def time_limit(
    seconds: float, error: type[BaseException] = OutOfTime, heartbeat: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Raise `error` inside the block after so many processor seconds, or after as many by the clock in which it hardly
    computes; only a process's main thread can be interrupted. heartbeat: called every so many seconds in which the
    block did compute, between two lines of its code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    begun, gradients = time.process_time(), torch.is_grad_enabled()
    used, next_look = _asked_for(), time.monotonic() + seconds  # of the last look at whether it computes, and the next

    def end(*said: str) -> NoReturn:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise error(*said)

    def look(signum: int, frame: object) -> None:
        nonlocal used, next_look
        left = begun + seconds - time.process_time()
        if left <= 0:
            end()
        if time.monotonic() >= next_look:
            now = _asked_for()
            if now - used < HANGING * seconds:
                end("it waits and does not compute")
            used, next_look = now, time.monotonic() + seconds
            heartbeat()
        set_timer(left)

    def set_timer(left: float) -> None:
        """Set the timer before threads on all cores can have used what is left, and no later than the next look."""
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


def _asked_for() -> float:
    """Return the seconds of processors that this process had, and that its main thread queued for if that is told."""
    try:
        with open(SCHEDULED, encoding="ascii") as file:
            queued = int(file.read().split()[1]) / 1e9
    except OSError:
        queued = 0.0
    return time.process_time() + queued


def longest(seconds: float) -> float:
    """Return the seconds by the clock after which even a busy machine has ended work with this limit."""
    return seconds / HANGING


def unhurried(seconds: float) -> float:
    """Turn seconds on an idle machine into seconds by the clock on this one, by its load per core."""
    return seconds * max(1.0, os.getloadavg()[0] / CORES)


@contextlib.contextmanager
def last_resort(seconds: float) -> Iterator[Callable[[], None]]:
    """End this process if the block takes more than so many seconds, whatever it holds or blocks, and write the stacks
    of its threads to stderr. Yield a function that starts the time anew."""

    def again() -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)

    again()
    try:
        yield again
    finally:
        faulthandler.cancel_dump_traceback_later()
