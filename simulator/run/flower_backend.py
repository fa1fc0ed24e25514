"""Flower's Ray backend, with another end: the one place that depends on the inside of Flower's simulation.

Flower 1.41 ends its actors by a task that exits its own actor, and shuts Ray down at once. Such a task counts as
failed, and Ray retries and reports it. Where the report comes after the shutdown it finds no raylet, and Ray ends the
whole process without a word, its tables written and nothing said. Killing an actor leaves no task behind.

`run_simulation` offers no choice of backend: it looks the class up in its module whenever a simulation starts. A test
runs a simulation, and fails where Flower has come to do that otherwise.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import ray
from flwr.server.superlink.fleet.vce.backend import raybackend


class KillingBackend(raybackend.RayBackend):
    """A backend whose actors are killed before Ray is shut down."""

    def terminate(self) -> None:
        actors: list[Any] = list(self.pool.pool) if self.pool else []
        for actor in actors:
            ray.kill(actor)
        self.pool = None  # nobody is left to be asked to exit
        super().terminate()


@contextlib.contextmanager
def killing_backend() -> Iterator[None]:
    """Simulations that start inside have a `KillingBackend`."""
    module = vars(raybackend)
    before = module["RayBackend"]
    module["RayBackend"] = KillingBackend
    try:
        yield
    finally:
        module["RayBackend"] = before
