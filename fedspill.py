"""The front door for Python: what does my federation spill?

    import fedspill

    strategy = fedspill.Record(FedAvg(), "runs/mine")           # in your ServerApp: write down what the server sees
    run = fedspill.audit("runs/mine", "task.py:Net", (1, 28, 28))  # attack all of it
    run = fedspill.load("runs/demo")                            # a run or an audit that is finished
    run.show()                                                  # in a notebook: what leaked worst
    observation, knowledge = run.observation(round=1, client=0)
    found = fedspill.attack("span", observation, knowledge)     # images of a client, from its update
    found.pixels()                                              # (M, C, H, W) in [0, 1]

Names are imported when they are asked for: whoever attacks two checkpoints needs neither pandas nor Flower nor Ray.
"""

import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attacks import Knowledge, Observation, Reconstruction

__version__ = "0.2.0"

HOME = {
    **dict.fromkeys(("Attack", "InputError", "Knowledge", "Observation", "Reconstruction", "get_attack"), "attacks"),
    "Record": "simulator.audit.record",
    "Run": "simulator.rundir.run",
    "audit": "simulator.audit.run_audit",
    "load": "simulator.rundir.run",
}
__all__ = sorted(["attack", *HOME])


def attack(
    name: str,
    observation: "Observation",
    knowledge: "Knowledge | None" = None,
    seed: int = 0,
    **options: object,
) -> "Reconstruction":
    """Attack one observation: what the attack called `name`, with these options, makes of it.

    name: of an attack of fedspill's or an installed package's; package.module:Class for one of yours.
    knowledge: what the adversary is told beyond the checkpoints; nothing by default.
    seed: of its random numbers.

    Raises InputError for an unknown attack or option, and where the attack cannot run on this network.
    """
    from attacks import Knowledge, allow_code, get_attack, torch_generator

    if ":" in name:
        allow_code(name)  # whoever calls this has typed it
    return get_attack(name, **options).run(observation, knowledge or Knowledge(), torch_generator(seed, name))


def main() -> None:
    """The command line. Ctrl-C ends it with exit code 130, and no stack."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell ignores it for us
        signal.signal(signal.SIGINT, _interrupt)
    from simulator.cli.main import main as command_line

    try:
        command_line()
    except KeyboardInterrupt:
        _leave()
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, _leave)  # Python's own end takes a while, too


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """As Python does it, but in the middle of an import at once: some of numpy's take it for an error of their own."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def _leave(signum: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    os._exit(128 + signum)


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'fedspill' has no attribute {name!r}")
    return getattr(importlib.import_module(HOME[name]), name)


def _refuse_shadows(home: Path) -> None:
    """Raise ImportError where a folder or file of the user's would be imported in the place of a package in `home`."""
    for package in ("attacks", "clients", "simulator"):
        imported = sys.modules.get(package)
        found = imported.__spec__ if imported is not None else importlib.util.find_spec(package)
        if found is None:
            raise ImportError(
                f"fedspill is not installed completely: its package {package!r} is missing, install it again"
            )
        # a folder without __init__.py has no origin: Python calls it a namespace package
        places = [found.origin] if found.origin else list(found.submodule_search_locations or [])
        if home / package / "__init__.py" not in [Path(place).resolve() for place in places]:
            raise ImportError(
                f"{places[0]} stands in the way of fedspill's own package {package!r}, which Python would find later: "
                "rename it, or start Python from another folder"
            )


_refuse_shadows(Path(__file__).resolve().parent)
if __name__ == "__main__":  # python -m fedspill
    main()
