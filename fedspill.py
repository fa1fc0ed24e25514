"""The front door for Python: what does my federation spill?

import fedspill

record = fedspill.load("runs/demo")                         # a run directory
observation, knowledge = record.observation(round=1, client=0)
found = fedspill.attack("span", observation, knowledge)     # images of a client, from its update
found.pixels()                                              # (M, C, H, W) in [0, 1]
"""

from typing import TYPE_CHECKING, Any

from attacks import Attack, InputError, Knowledge, Observation, Reconstruction, get_attack, torch_generator

if TYPE_CHECKING:
    from simulator.results.record import Record, load

__version__ = "0.2.0"

__all__ = [
    "Attack",
    "InputError",
    "Knowledge",
    "Observation",
    "Reconstruction",
    "Record",
    "__version__",
    "attack",
    "get_attack",
    "load",
]


def attack(
    name: str, observation: Observation, knowledge: Knowledge | None = None, seed: int = 0, **options: object
) -> Reconstruction:
    """Attack one observation: what the attack called `name`, with these options, makes of it.

    knowledge: what the adversary is told beyond the checkpoints; nothing by default. seed: of its random numbers.
    Raises InputError for an unknown attack or option, and where the attack cannot run on this network.
    """
    return get_attack(name, **options).run(observation, knowledge or Knowledge(), torch_generator(seed, name))


def __getattr__(name: str) -> Any:
    """Record and load are imported when asked for: attacks alone need neither pandas nor Flower."""
    if name in ("Record", "load"):
        from simulator.results import record

        return getattr(record, name)
    raise AttributeError(f"module 'fedspill' has no attribute {name!r}")
