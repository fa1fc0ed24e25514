"""When Python looks for objects that only hold each other."""

import gc

USUAL = gc.get_threshold()
RARE = 50_000  # objects between two looks


def look_rarely() -> None:
    """While a command imports: at the usual pace a sixth of that time goes into looking."""
    gc.set_threshold(RARE)


def look_as_usual() -> None:
    """From here on, in a process that looked rarely, and not at what is there already."""
    if gc.get_threshold()[0] == RARE:
        gc.freeze()
        gc.set_threshold(*USUAL)


def look_now() -> None:
    """After a round: Flower's messages hold each other, and with them every array of its checkpoints. Left to chance, a
    hundred megabytes of each round of ten clients stay."""
    gc.collect()


def leave_it() -> None:
    """As a process ends: a last look takes half a second after PyTorch's import."""
    gc.freeze()
