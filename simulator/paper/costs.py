"""What an experiment would cost: a few of its steps, timed on this machine."""

import time
from collections.abc import Callable

STEPS = 5


def seconds_per_step(run: Callable[[int], object]) -> float:
    """run: does as many steps as it is told, and whatever goes before them, which is not counted."""
    run(1)  # warm: the first time, libraries and allocators set themselves up
    one, more = clocked(lambda: run(1)), clocked(lambda: run(1 + STEPS))
    return max(0.0, more - one) / STEPS


def clocked(do: Callable[[], object]) -> float:
    """The seconds that it takes."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start
