"""What clients, attacks and scores of the matrix do wrong, each by its name."""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

import torch

SPARE = 64 * 2**20  # bytes that are left to a process that is to run out of memory


def say() -> None:
    raise RuntimeError("out of \x1b[31mcheese\x1b[0m\nin the [/bold] second line")


def sleep() -> None:
    time.sleep(100_000)


def block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM, signal.SIGINT])
    sleep()


def swallow() -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            sleep()


def no_memory() -> None:
    raise MemoryError


def allocate() -> None:
    """More than the process may have: the limit is its own, and goes with the error."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, before[1]))
    try:
        torch.zeros(4 * SPARE, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


ACTS: dict[str, Callable[[], object]] = {
    "raises": say,
    "hangs": sleep,
    "blocks signals": block,
    "swallows its time limit": swallow,
    "calls sys.exit": lambda: sys.exit(0),
    "calls os._exit": lambda: os._exit(3),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),  # as the kernel does where memory is short
    "raises MemoryError": no_memory,
    "exceeds its memory": allocate,
}
