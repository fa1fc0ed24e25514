"""Launch a simulation: Flower's runtime on our Ray cluster, in this process."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from clients.client_app import app as client_app
from simulator.run.cluster import actors_that_fit, backend_config, start_ray
from simulator.run.display import Display, interruptible
from simulator.run.federation import run_federation
from simulator.run.plan import RunPlan
from simulator.run.run_folder import check_unused, claimed
from simulator.run.tracking import tracked
from simulator.run.workers import KillingBackend, killing_backend
from simulator.run_errors import RunError


def simulate(plan: RunPlan, display: Display, overwrite: bool = False, verbose: bool = False) -> None:
    """Run a plan to its end on Ray. Write nothing until Ray has room for it. Raise RunError if it has to stop."""
    server_app, display = ServerApp(), tracked(display, plan)
    caught: list[Exception] = []
    backends: list[KillingBackend] = []  # one, once it has started

    def patience(clients: int, seconds: float) -> float:
        return max((backend.patience(clients, seconds) for backend in backends), default=seconds)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            share = resources["client_resources"]
            beside = share["num_gpus"], min(actors_that_fit(**share), plan.clients)
            run_federation(grid, plan, display, patience, beside)
        except Exception as error:
            caught.append(error)
        finally:
            for backend in backends:
                backend.replace_busy()  # Flower would wait for them

    for name, level in (("flwr", logging.CRITICAL), ("ray", logging.ERROR)):
        logging.getLogger(name).setLevel(logging.INFO if verbose else level)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore", DeprecationWarning)
        stack.enter_context(interruptible(display, "; the setting under way is trained anew, and keeps its attacks"))
        check_unused(plan.run_dir)
        start_ray(plan.scenario.engine)
        resources = backend_config(plan.scenario.engine, plan.clients)
        for line in stack.enter_context(claimed(plan, overwrite)):
            display.note(line)
        if not verbose:
            stack.enter_context(printing_to(plan.run_dir / "ray.log"))
        try:
            backends = stack.enter_context(killing_backend(plan.clients))
            run_simulation(server_app, client_app, plan.clients, backend_config=resources)
        except Exception as error:
            if not caught:
                raise RunError(f"the simulation stopped: {error}") from error
    if caught:
        raise caught[0]


@contextlib.contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """Send stdout to a file, as far as the disk takes it: Ray prints a line on every worker that ends."""
    log: TextIO = io.StringIO()
    with contextlib.suppress(OSError):
        log = path.open("a", encoding="utf-8")
    try:
        with contextlib.redirect_stdout(log):
            yield
    finally:
        with contextlib.suppress(OSError):  # closing writes what is left
            log.close()
