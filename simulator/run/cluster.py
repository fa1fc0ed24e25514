"""The Ray cluster that clients and attacks run on."""

import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch  # sets attributes inside a block, and restores them

import grpc
import ray
import torch
from ray._private import utils
from ray._private.authentication_test_utils import reset_auth_token_state
from ray._private.node import Node

from attacks.interface.errors import InputError, one_line
from attacks.interface.plugins import VARIABLE
from simulator.evaluation.dispatch import ATTACK_RESOURCE, attack_gpu_share, resources_of_nodes, room_on_gpus
from simulator.run.orphan_reaper import reap, reaped
from simulator.scenario.sections import EngineConfig

ANSWER = 10.0  # seconds that a cluster has to accept a connection
DEFAULT_GPU_SHARE = 0.3  # three clients on a GPU, and a tenth left for attacks
# The dashboard, the autoscaler, and what brings logs to the driver: nobody asks them here, and each is a process of
# Python's that imports Ray.
UNUSED = ("start_api_server", "start_monitor", "start_log_monitor")


def start_ray(engine: EngineConfig) -> bool:
    """Start a Ray with slots for attacks, or connect to `engine.address`. Return False if a Ray is up: it is used."""
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a call after the shutdown would start another Ray in silence
    if ray.is_initialized():
        return False
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    variables = worker_environment(engine.threads)
    if engine.address is None:
        workers = engine.attack_workers or os.cpu_count() or 1
        # client actors hold all CPUs. Without a free one Ray ends an idle worker after a second, with its imports, and
        # the attacks of every round would wait for new workers
        kept = {"num_workers_soft_limit": workers}
        require_token()
        # "local": another Ray on this machine, or at RAY_ADDRESS, is left alone. All of its workers inherit variables
        # that are set while it starts: with a runtime environment it would not use those that it starts beforehand.
        with reaped(), patch.dict(os.environ, variables), own_signals(), without_unused():
            slots: dict[str, float] = {ATTACK_RESOURCE: workers}
            gpus = torch.cuda.device_count()  # Ray would count cards that this build of PyTorch cannot use
            ray.init("local", num_gpus=gpus, include_dashboard=False, resources=slots, _system_config=kept, **common)
        return True
    _check_that_somebody_answers(engine.address)
    try:
        with own_signals():
            ray.init(address=engine.address, runtime_env={"env_vars": variables}, **common)
    except (ray.exceptions.AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
        token = "" if _has_token() else "; if it wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to its own"
        raise InputError(
            f"engine.address {engine.address!r}: no Ray cluster answers there ({one_line(error)}){token}"
        ) from None
    return True


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Keep our handler of SIGTERM while Ray starts: Ray's own ends the process by a crash or with exit code 1."""
    if threading.current_thread() is not threading.main_thread():  # Ray leaves it alone there, too
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        with patch.object(utils, "set_sigterm_handler", lambda handler: None):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray's C++ sets one, too


def without_unused() -> contextlib.AbstractContextManager[object]:
    """Start Ray without the processes that a run does not use: it is up two seconds sooner. `ray.init` has no such
    option; a version of Ray whose methods have other names starts them."""
    nothing: dict[str, Any] = {name: lambda node, *args, **options: None for name in UNUSED if name in vars(Node)}
    return patch.multiple(Node, **nothing) if nothing else contextlib.nullcontext()


def require_token() -> None:
    """Protect the Ray that starts next by a token: its ports are open on every interface.

    Ray's processes inherit the environment; a token that is there already is the user's own. Ray reads the environment
    when it is imported, and again after a function of its own tests.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    reset_auth_token_state()


def _has_token() -> bool:
    return bool({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ))


def _check_that_somebody_answers(address: str) -> None:
    """Raise InputError if no cluster answers: Ray itself would go on trying for minutes."""
    if address == "auto":  # Ray looks on this machine
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"engine.address is {address!r}: write HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            with grpc.insecure_channel(f"{host}:{port}") as channel:
                grpc.channel_ready_future(channel).result(timeout=ANSWER)
    except grpc.FutureTimeoutError:
        silent = f"somebody listens, who does not speak gRPC within {ANSWER:g} s"
        raise InputError(f"engine.address {address!r}: no Ray cluster answers there ({silent})") from None
    except (OSError, UnicodeError) as error:
        raise InputError(f"engine.address {address!r}: no Ray cluster answers there ({error})") from None


def worker_environment(threads: int) -> dict[str, str]:
    """Return the variables of the workers' processes, which import our packages from here, wherever they work."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    allowed = os.environ.get(VARIABLE, "")
    return {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads), VARIABLE: allowed}


def backend_config(engine: EngineConfig, clients: int) -> dict:
    """Return Flower's backend settings: the share of each client. Raise InputError if the cluster has no room for it.
    Ray does not restart actors, which would take the time of the client that they died in: `workers` does."""
    there = ray.cluster_resources()
    gpus = engine.gpus if engine.gpus is not None else (DEFAULT_GPU_SHARE if there.get("GPU", 0) else 0.0)
    for name, wanted in (("CPU", engine.cpus), ("GPU", gpus)):
        if wanted > there.get(name, 0):
            raise InputError(
                f"engine.{name.lower()}s is {wanted:g} {name} per client, Ray has {there.get(name, 0):g}: lower it"
            )
    if gpus > 1 and gpus != int(gpus):
        raise InputError(f"engine.gpus is {gpus:g}: Ray has whole GPUs, or shares of one: try {int(gpus)}")
    actors = min(actors_that_fit(engine.cpus, gpus), clients)
    if not actors:
        raise InputError(
            f"no node of Ray has engine.cpus = {engine.cpus:g} CPU and engine.gpus = {gpus:g} GPU for a client: "
            "lower them"
        )
    share = attack_gpu_share()
    if gpus and share and not room_on_gpus(share, gpus, actors):  # idle client actors keep their GPUs
        raise InputError(f"engine.gpus is {gpus:g}: clients would leave no {share:g} GPU for attacks; try 0.3")
    return {"client_resources": {"num_cpus": engine.cpus, "num_gpus": gpus}}


def actors_that_fit(num_cpus: float, num_gpus: float) -> int:
    """Return how many client actors the nodes have room for.

    A share of a GPU lies on one GPU: of 0.3, three fit on each and twelve on four. Flower counts thirteen, of which one
    never comes up.
    """

    def on(there: Mapping[str, float]) -> int:
        room = int(there.get("CPU", 0) / num_cpus)
        if num_gpus >= 1:
            return min(room, int(there.get("GPU", 0) / num_gpus))
        return min(room, int(there.get("GPU", 0)) * int(1 / num_gpus + 1e-9)) if num_gpus else room

    return sum(map(on, resources_of_nodes()))


def stop_ray() -> None:
    """Disconnect from Ray and stop the cluster that this process started, no other."""
    with contextlib.suppress(Exception):
        ray.shutdown()
        if not ray.is_initialized():
            reap()
