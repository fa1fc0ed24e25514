"""How a simulation is launched: Flower's runtime on our Ray cluster, in this process."""

import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import ray
from flwr.app import Context
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.serverapp import Grid, ServerApp

from simulator.errors import RunError
from simulator.run.cluster import backend_config, start_ray, stop_ray
from simulator.run.display import Display
from simulator.run.federation import run_federation
from simulator.run.folder import claimed
from simulator.run.plan import RunPlan
from simulator.run.tracking import tracked


def simulate(plan: RunPlan, display: Display, overwrite: bool = False, verbose: bool = False) -> None:
    """Run a plan to its end on Ray; RunError where it had to stop. Nothing is written before Ray is known to fit."""
    from flwr.simulation import run_simulation

    from clients.client_app import app as client_app

    display = tracked(display, plan)
    server_app = ServerApp()
    caught: list[Exception] = []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            run_federation(grid, plan, display)
        except Exception as error:
            caught.append(error)

    for name, level in (("flwr", logging.CRITICAL), ("ray", logging.ERROR)):  # they speak up when something is wrong
        logging.getLogger(name).setLevel(logging.INFO if verbose else level)
    start_ray(plan.scenario.engine)
    resources = backend_config(plan.scenario.engine)
    with claimed(plan, overwrite), warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore", DeprecationWarning)
        if not verbose:  # Ray prints the fate of every worker, ended on purpose or not
            log = stack.enter_context((plan.run_dir / "ray.log").open("a"))
            stack.enter_context(contextlib.redirect_stdout(log))
        try:
            stack.enter_context(interruptible(display))
            stack.enter_context(killing_backend())
            run_simulation(server_app, client_app, plan.clients, backend_config=resources)
        except Exception as error:
            if not caught:
                raise RunError(f"the simulation stopped: {error}") from error
    if caught:
        raise caught[0]


@contextlib.contextmanager
def interruptible(display: Display) -> Iterator[None]:
    """Ctrl-C ends the process at once, with exit code 130.

    Flower would wait for its server's thread, that is until the run is done. Rows and files are complete when they are
    written, so leaving at any time loses nothing but the attacks and the rounds in progress.
    """

    def leave(signum: int, frame: Any) -> None:
        display.stop()
        print("fedspill: interrupted; the same command goes on from here", file=sys.stderr, flush=True)
        stop_ray()
        os._exit(130)

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    previous = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class KillingBackend(raybackend.RayBackend):
    """Flower's Ray backend, whose actors are killed before Ray is shut down.

    Flower 1.41 ends its actors by a task that exits its own actor, and shuts Ray down at once. Such a task counts as
    failed, and Ray retries and reports it. Where the report comes after the shutdown it finds no raylet, and Ray ends
    the whole process without a word, its tables written and nothing said. Killing an actor leaves no task behind.
    """

    def terminate(self) -> None:
        actors: list[Any] = list(self.pool.pool) if self.pool else []
        for actor in actors:
            ray.kill(actor)
        self.pool = None  # nobody is left to be asked to exit
        super().terminate()


@contextlib.contextmanager
def killing_backend() -> Iterator[None]:
    """Simulations that start inside have a `KillingBackend`.

    This is the one place that depends on the inside of Flower: `run_simulation` offers no choice of backend, it looks
    the class up in its module whenever a simulation starts. A test fails where Flower has come to do that otherwise.
    """
    module = vars(raybackend)
    before = module["RayBackend"]
    module["RayBackend"] = KillingBackend
    try:
        yield
    finally:
        module["RayBackend"] = before
