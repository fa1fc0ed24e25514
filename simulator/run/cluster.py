"""The Ray cluster that clients and attacks run on."""

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import ray

from simulator.errors import InputError
from simulator.evaluation.dispatch import ATTACK_RESOURCE, attack_gpu_share
from simulator.scenario.sections import EngineConfig

DEFAULT_GPU_SHARE = 0.3  # three clients on a GPU, and a tenth left for attacks


def start_ray(engine: EngineConfig) -> None:
    """A Ray of our own with slots for attacks, or the cluster at `engine.address`. One that is up already is used."""
    if ray.is_initialized():
        return
    common: dict[str, Any] = {
        "runtime_env": {"env_vars": worker_environment(engine.threads)},
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


def worker_environment(threads: int) -> dict[str, str]:
    """Variables of the workers' processes: the packages come from here, whatever their working directory holds."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}


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


def stop_ray() -> None:
    """Disconnect from Ray and stop the cluster that this process started, no other."""
    with contextlib.suppress(Exception):
        ray.shutdown()
