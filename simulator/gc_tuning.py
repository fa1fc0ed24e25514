"""Tune Python's garbage collector."""

import gc

USUAL = gc.get_threshold()
RARE = 50_000  # objects between two collections


def collect_rarely() -> None:
    """Collect rarely while a command imports: at the usual pace it takes a sixth of that time."""
    gc.set_threshold(RARE)


def collect_as_usual() -> None:
    """Collect at the usual pace again, without the objects that are there already."""
    if gc.get_threshold()[0] == RARE:
        gc.freeze()
        gc.set_threshold(*USUAL)


def collect_now() -> None:
    """Collect after a round: Flower's messages hold each other, and with them the arrays of its checkpoints, a hundred
    megabytes of each round of ten clients."""
    gc.collect()
