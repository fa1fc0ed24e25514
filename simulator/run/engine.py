"""How a simulation is launched: Flower's runtime on our Ray cluster, in this process."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import ray
from flwr.app import Context
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.serverapp import Grid, ServerApp

from simulator.errors import RunError
from simulator.run.cluster import backend_config, start_ray
from simulator.run.display import Display
from simulator.run.federation import run_federation
from simulator.run.folder import claimed
from simulator.run.interruption import interruptible
from simulator.run.plan import RunPlan
from simulator.run.tracking import tracked


def simulate(plan: RunPlan, display: Display, overwrite: bool = False, verbose: bool = False) -> None:
    """Run a plan to its end on Ray; RunError where it had to stop. Nothing is written before Ray is known to fit."""
    from flwr.simulation import run_simulation

    from clients.client_app import app as client_app

    server_app, display = ServerApp(), tracked(display, plan)
    caught: list[Exception] = []
    backends: list[KillingBackend] = []  # one, once it has started

    def free_workers() -> None:
        for backend in backends:
            backend.replace_busy()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            run_federation(grid, plan, display, free_workers)
        except Exception as error:
            caught.append(error)
        finally:
            free_workers()  # Flower would wait for them

    for name, level in (("flwr", logging.CRITICAL), ("ray", logging.ERROR)):  # they speak up when something is wrong
        logging.getLogger(name).setLevel(logging.INFO if verbose else level)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore", DeprecationWarning)
        stack.enter_context(interruptible(display))
        start_ray(plan.scenario.engine)
        resources = backend_config(plan.scenario.engine)
        for line in stack.enter_context(claimed(plan, overwrite)):
            display.note(line)
        if not verbose:
            stack.enter_context(told_to(plan.run_dir / "ray.log"))
        try:
            backends = stack.enter_context(killing_backend())
            run_simulation(server_app, client_app, plan.clients, backend_config=resources)
        except Exception as error:
            if not caught:
                raise RunError(f"the simulation stopped: {error}") from error
    if caught:
        raise caught[0]


@contextlib.contextmanager
def told_to(path: Path) -> Iterator[None]:
    """What is printed goes to this file, as far as the disk takes it: Ray prints the fate of every worker, ended on
    purpose or not."""
    log: TextIO = io.StringIO()
    with contextlib.suppress(OSError):
        log = path.open("a")
    try:
        with contextlib.redirect_stdout(log):
            yield
    finally:
        with contextlib.suppress(OSError):  # closing writes what is left
            log.close()


class KillablePool(raybackend.BasicActorPool):
    """Flower's pool of actors, from which those that are busy can be thrown out."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.killed: set[Any] = set()

    def replace_busy(self) -> None:
        """Kill the actors that are at work. Their messages are answered by an error, and new actors take their place.

        To restart them would not do: Ray hands a restarted actor the task that it was killed in.
        """
        busy: list[Any] = list(self._future_to_actor.values())
        for actor in busy:
            self.killed.add(actor)
            ray.kill(actor)

    def add_actor_back_to_pool(self, future: Any) -> None:
        actor = self._future_to_actor.pop(future)
        self.pool.append(self.create_actor_fn() if actor in self.killed else actor)


class KillingBackend(raybackend.RayBackend):
    """Flower's Ray backend, whose actors can be killed: those that hang, and all of them before Ray is shut down.

    Flower waits for an actor as long as it takes: one client that hangs would take a worker from all the others in
    every later round, and keep the simulation from ending.

    It ends its actors by a task that exits its own actor, and shuts Ray down at once. Such a task counts as failed, and
    Ray retries and reports it. Where the report comes after the shutdown it finds no raylet, and Ray ends the whole
    process without a word, its tables written and nothing said. Killing an actor leaves no task behind.
    """

    def replace_busy(self) -> None:
        """Free the workers of clients that did not reply in time."""
        if isinstance(self.pool, KillablePool):
            self.pool.replace_busy()

    def terminate(self) -> None:
        actors: list[Any] = list(self.pool.pool) if self.pool else []
        for actor in actors:
            ray.kill(actor)
        self.pool = None  # nobody is left to be asked to exit
        super().terminate()


@contextlib.contextmanager
def killing_backend() -> Iterator[list[KillingBackend]]:
    """Simulations that start inside have a `KillingBackend`; they are in the list as soon as they have started.

    This is the one place that depends on the inside of Flower: `run_simulation` offers no choice of backend, it looks
    the classes up in their module whenever a simulation starts. A test fails where Flower has come to do otherwise.
    """
    started: list[KillingBackend] = []

    def start(config: Any) -> KillingBackend:
        started.append(KillingBackend(config))
        return started[-1]

    module = vars(raybackend)
    before = {name: module[name] for name in ("RayBackend", "BasicActorPool")}
    module.update(RayBackend=start, BasicActorPool=KillablePool)
    try:
        yield started
    finally:
        module.update(before)
