"""The server's half of a defense as plain values: nothing here knows Flower, `simulator/run/strategies.py` does."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServerHalf:
    """What a defense changes in how the server aggregates a round, and in what the server sees of it.

    strategy: the Flower strategy that is wrapped around the scenario's, by its class name or as package.module:class;
    "" where the defense only changes what is seen. options: further keyword arguments of its constructor; the wrapped
    strategy, and the number of clients of a round where it asks for `num_sampled_clients`, are passed besides.
    hides_clients: the server learns the sum of a round's updates and no single one. needs_single_updates: the server
    has to see each client's update, so that nothing may hide them. if_hidden: what it lacks where something does, and
    what to use then; it ends the message that refuses the chain.
    """

    strategy: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    hides_clients: bool = False
    needs_single_updates: bool = False
    if_hidden: str = "no update of a single client"
