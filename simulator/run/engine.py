"""How a simulation is launched: the one module that knows Ray and Flower's simulation runtime."""

import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

# workers without a GPU share keep seeing the GPUs, as Ray itself will do in future versions
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation.ray_transport.ray_actor import BasicActorPool

from simulator.errors import InputError, RunError
from simulator.evaluation.dispatch import ATTACK_RESOURCE, attack_gpu_share
from simulator.run.federation import run_federation
from simulator.run.plan import RunPlan, claimed
from simulator.run.progress import Display
from simulator.scenario.sections import EngineConfig

DEFAULT_GPU_SHARE = 0.3  # three clients on a GPU, and a tenth left for attacks


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
            stack.enter_context(patch.object(BasicActorPool, "terminate_all_actors", kill_actors))
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


def kill_actors(pool: Any) -> None:
    """End Flower's actors before it shuts Ray down.

    Flower ends them by a task that exits its own actor. That counts as a failed task, which Ray retries and reports;
    where the report comes after the shutdown it finds no raylet, and Ray ends the whole process without a word, its
    tables written and nothing said. Killing an actor leaves no task behind.
    """
    for actor in pool.pool:  # a BasicActorPool
        ray.kill(actor)


def start_ray(engine: EngineConfig) -> None:
    """A Ray of our own with slots for attacks, or the cluster at `engine.address`. One that is up already is used."""
    if ray.is_initialized():
        return
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    common: dict[str, Any] = {
        # workers import the packages from here, whatever their working directory holds
        "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(engine.threads)}},
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if engine.address is None:
        workers = engine.attack_workers or os.cpu_count() or 1
        ray.init(include_dashboard=False, resources={ATTACK_RESOURCE: workers}, **common)
        return
    try:
        ray.init(address=engine.address, **common)
    except ConnectionError as error:
        raise InputError(f"engine.address {engine.address!r}: no Ray cluster answers there ({error})") from None


def backend_config(engine: EngineConfig) -> dict:
    """Flower's backend settings: the share of each client; a dead actor restarts instead of failing every client."""
    there = ray.cluster_resources()
    gpus = engine.gpus if engine.gpus is not None else (DEFAULT_GPU_SHARE if there.get("GPU", 0) else 0.0)
    for name, wanted in (("CPU", engine.cpus), ("GPU", gpus)):
        if wanted > there.get(name, 0):
            raise InputError(
                f"engine.{name.lower()}s is {wanted:g} {name} per client, Ray has {there.get(name, 0):g}: lower it"
            )
    share = attack_gpu_share()
    if gpus and share:
        # idle client actors keep their GPUs, and as many start as fit
        actors = min(int(there["CPU"] / engine.cpus), int(there["GPU"] / gpus))
        if there["GPU"] - actors * gpus < share - 1e-9:
            raise InputError(f"engine.gpus is {gpus:g}: clients would leave no {share:g} GPU for attacks; try 0.3")
    return {"client_resources": {"num_cpus": engine.cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": 1}}


def quiet(verbose: bool) -> None:
    """Flower, Ray and their friends speak up only when something is wrong, or when asked to."""
    logging.getLogger("flwr").setLevel(logging.INFO if verbose else logging.CRITICAL)
    logging.getLogger("ray").setLevel(logging.INFO if verbose else logging.ERROR)


def stop_ray() -> None:
    """Disconnect from Ray and stop the cluster that this process started, no other."""
    with contextlib.suppress(Exception):
        ray.shutdown()
