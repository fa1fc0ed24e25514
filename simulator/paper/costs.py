"""What an experiment would cost: a few of its steps, timed on this machine."""

import time
from collections.abc import Callable

FEWEST, MOST = 5, 320  # steps that are timed
LONGER = 1.5  # times as long as what goes before them: fewer steps would drown in its scatter
SLOW = 10.0  # seconds of one step and what goes before it, from which on nobody waits for more than a second one
LEAST = 0.1  # of those seconds: a second step that seems to take less is lost in their scatter


def seconds_per_step(run: Callable[[int], object]) -> float:
    """An upper bound of the seconds that one step takes.

    run: does as many steps as it is given, and whatever goes before them, which is not counted if it can be told apart.
    """
    first = clocked(run, 1)
    if first > SLOW:
        return max(clocked(run, 2) - first, LEAST * first)
    one, steps = clocked(run, 1), FEWEST  # warm: the first time, libraries and allocators set themselves up
    while (more := clocked(run, 1 + steps)) < LONGER * one and steps < MOST:
        steps *= 4
    return (more - one) / steps if more >= LONGER * one else more / (1 + steps)


def clocked(do: Callable[..., object], *arguments: object) -> float:
    """The seconds that one call takes."""
    start = time.perf_counter()
    do(*arguments)
    return time.perf_counter() - start
