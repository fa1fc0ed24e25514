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

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from simulator.errors import RunError
from simulator.run.cluster import backend_config, start_ray, stop_ray
from simulator.run.display import Display
from simulator.run.federation import run_federation
from simulator.run.flower_backend import killing_backend
from simulator.run.folder import claimed
from simulator.run.plan import RunPlan


def simulate(plan: RunPlan, display: Display, overwrite: bool = False, verbose: bool = False) -> None:
    """Run a plan to its end on Ray; RunError where it had to stop. Nothing is written before Ray is known to fit."""
    from flwr.simulation import run_simulation

    from clients.client_app import app as client_app

    server_app = ServerApp()
    caught: list[Exception] = []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            run_federation(grid, plan, display)
        except Exception as error:
            caught.append(error)

    quiet(verbose)
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


def quiet(verbose: bool) -> None:
    """Flower, Ray and their friends speak up only when something is wrong, or when asked to."""
    logging.getLogger("flwr").setLevel(logging.INFO if verbose else logging.CRITICAL)
    logging.getLogger("ray").setLevel(logging.INFO if verbose else logging.ERROR)
