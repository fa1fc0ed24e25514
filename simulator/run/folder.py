"""The run directory: whether a run may start in it, the lock that keeps others out, and the description of the run."""

import contextlib
import datetime
import platform
from collections.abc import Iterator
from importlib import metadata

import torch
import yaml
from filelock import FileLock, Timeout

from attacks import InputError
from simulator.errors import RunError
from simulator.results.ledger import JOURNAL, TABLES, finished_cells
from simulator.results.run import DESCRIPTION, read_description
from simulator.results.storage import check_out, make_out, write_atomically
from simulator.run.plan import RunPlan
from simulator.scenario.scenario import Scenario

LOCK = ".lock"
RECORDED_VERSIONS = ("fedspill", "torch", "numpy", "flwr", "ray", "flwr-datasets", "scipy", "scikit-image")


def needs_run(plan: RunPlan, overwrite: bool = False) -> bool:
    """Whether the run directory is free, or holds this scenario unfinished. Nothing is written.

    False where this scenario already finished there and is to be kept; InputError where something else lies there.
    """
    check_out(plan.run_dir)
    if not plan.run_dir.exists() or not any(path.name != LOCK for path in plan.run_dir.iterdir()):
        return True
    description = plan.run_dir / DESCRIPTION
    found = read_description(description).get("digest") if description.exists() else None
    if found is None:
        raise InputError(f"{str(plan.run_dir)!r} holds something that is no fedspill run: choose another --out")
    if found != plan.scenario.digest:
        raise InputError(f"{str(plan.run_dir)!r} already holds another scenario's run: choose another --out")
    return overwrite or not {cell.name for cell in plan.cells} <= finished_cells(plan.run_dir)


@contextlib.contextmanager
def claimed(plan: RunPlan, overwrite: bool = False) -> Iterator[None]:
    """Make the run directory and describe the run in it; with `overwrite`, forget the tables of an earlier one.

    Inside, other processes are kept out: two runs would write over each other's journal. RunError where one is in.
    """
    make_out(plan.run_dir)
    try:
        lock = FileLock(plan.run_dir / LOCK, timeout=0).acquire()
    except Timeout:
        raise RunError(
            f"another process is running in {str(plan.run_dir)!r}: wait for it, or choose another --out"
        ) from None
    with lock:
        if overwrite:
            for name in (JOURNAL, "leakage.csv", *(f"{table}.parquet" for table in TABLES)):
                (plan.run_dir / name).unlink(missing_ok=True)
        text = yaml.safe_dump(describe(plan.scenario), sort_keys=False, allow_unicode=True)
        write_atomically(plan.run_dir / DESCRIPTION, text)
        yield


def describe(scenario: Scenario) -> dict[str, object]:
    """The resolved scenario, its digest, and what it ran on."""
    return {
        "scenario": scenario.model_dump(mode="json"),
        "digest": scenario.digest,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {name: metadata.version(name) for name in RECORDED_VERSIONS},
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }
