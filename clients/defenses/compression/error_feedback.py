"""Error feedback (Karimireddy et al. 2019): what compression takes from an update is added to the next round's.

What a client still owes is as large as the network, and it is remembered as text (`clients.defenses.memory`).
"""

from collections.abc import Callable
from typing import Any

from attacks.interface.observation import State
from clients.defenses.memory import as_text, from_text

ERROR = "error"  # of the last round, in the defense's memory


def with_error_feedback(delta: State, memory: dict[str, Any], compress: Callable[[State], State]) -> State:
    """compress(Δθ + e), with e = 0 in the first round and then Δθ + e − compress(Δθ + e)."""
    owed = from_text(memory[ERROR]) if ERROR in memory else {}
    whole = {name: value + owed[name] if name in owed else value for name, value in delta.items()}
    sent = compress(whole)
    left = {name: value - sent[name] for name, value in whole.items()}
    if all(bool(value.isfinite().all()) for value in left.values()):  # a round that diverged is not made up for
        memory[ERROR] = as_text(left)
    return sent
