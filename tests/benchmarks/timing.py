"""Times that can be compared on a busy machine, and the machine's matrix-multiplication ceiling beside them."""

import statistics
import time
from collections.abc import Callable

import torch

TURNS = 8
SQUARE = 1024  # rows and columns of the product that is the ceiling


def timed(
    actions: list[Callable[[], object]], device: torch.device, turns: int | None = None, runs: int = 5
) -> list[float]:
    """Median seconds of each action: five runs in a row, as in an attack, then the next one's turn, so that a busy
    machine slows all alike."""
    seconds: list[list[float]] = [[] for _ in actions]
    for turn in range((turns or TURNS) + 1):
        for action, taken in zip(actions, seconds, strict=True):
            for _ in range(runs):
                lasted = seconds_of(action, device)
                if turn > 0:  # the first turn warms up
                    taken.append(lasted)
    return [statistics.median(taken) for taken in seconds]


def seconds_of(action: Callable[[], object], device: torch.device) -> float:
    """Of the processor, whatever else runs on it; on CUDA those that pass."""
    if device.type == "cpu":
        start = time.process_time()
        action()
        return time.process_time() - start
    start = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def four_products(device: torch.device) -> Callable[[], None]:
    """Four products of square float32 matrices, `4 * product_work()` multiplications and additions."""
    square = torch.randn((SQUARE, SQUARE), device=device)

    def run() -> None:
        for _ in range(4):
            square @ square

    return run


def product_work() -> int:
    return 2 * SQUARE**3
