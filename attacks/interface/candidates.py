"""How many candidate images an optimization moves, and how many it may: every one of them takes memory in each step."""

import math

from attacks.interface.errors import InputError
from attacks.interface.knowledge import Knowledge

MOST_CANDIDATES = 10_000  # twenty times those of 250 private images
MOST_PIXELS = 2**28  # of all candidates: a gibibyte in float32


def count_candidates(
    attack: str, shape: tuple[int, int, int], knowledge: Knowledge, factor: float = 1.0, number: int | None = None
) -> int:
    """`number`, or else `factor` times the private images, one at least.

    attack: its name. shape: (C, H, W) of an image. InputError, before memory is asked for, for more than there may be.
    """
    private = knowledge.num_private or 1
    count, most = number or factor * private, max(1, min(MOST_CANDIDATES, MOST_PIXELS // math.prod(shape)))
    if count > most:
        told = f"num_private is {private:,}" if knowledge.num_private else ""
        asked = " and ".join(filter(None, (told, f"candidates is {factor:g}" if factor != 1 else "")))
        asked, size = asked if number is None else f"num_candidates is {number:,}", "×".join(map(str, shape))
        raise InputError(f"attack {attack!r}: {asked}; at most {most:,} candidates of {size} fit in memory: lower it")
    return max(1, round(count))
