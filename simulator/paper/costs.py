"""What an experiment would cost: a few of its steps, timed on this machine."""

import time
from collections.abc import Callable

FEWEST, MOST = 5, 320  # steps that are timed
LONGER = 1.5  # times as long as what goes before them: fewer steps would drown in its scatter
SLOW = 3.0  # seconds of a first step and what goes before it, from which on a second one is enough


def seconds_per_step(run: Callable[[int], object]) -> float:
    """run: does as many steps as it is told, and whatever goes before them, which is not counted."""
    one, steps = clocked(run, 1), FEWEST
    if one > SLOW:
        return max(clocked(run, 2) - one, 0.0)
    one = clocked(run, 1)  # warm: the first time, libraries and allocators set themselves up
    while (more := clocked(run, 1 + steps)) < LONGER * one and steps < MOST:
        steps *= 4
    return max(more - one, 0.0) / steps


def clocked(do: Callable[..., object], *arguments: object) -> float:
    """The seconds that it takes."""
    start = time.perf_counter()
    do(*arguments)
    return time.perf_counter() - start
