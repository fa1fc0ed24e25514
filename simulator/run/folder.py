"""The run directory: whether a run may start in it, the lock that keeps others out, and the description of the run."""

import contextlib
import datetime
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import yaml
from filelock import FileLock, Timeout

from attacks import InputError
from simulator.errors import RunError
from simulator.results.ledger import JOURNAL, TABLES, Ledger, finished_cells
from simulator.results.run import DESCRIPTION, read_description
from simulator.results.storage import check_out, make_out, write_atomically
from simulator.scenario.scenario import Scenario

if TYPE_CHECKING:
    from simulator.run.plan import RunPlan

LOCK = ".lock"
TABLE_FILES = ("leakage.csv", *(f"{table}.parquet" for table in TABLES))
RECORDED_VERSIONS = ("fedspill", "torch", "numpy", "flwr", "ray", "flwr-datasets", "scipy", "scikit-image")


def needs_run(plan: "RunPlan", overwrite: bool = False) -> bool:
    """Whether the run directory is free, or holds this scenario unfinished.

    False where this scenario already finished there and is to be kept; InputError where something else lies there.
    Nothing is written but tables that are missing: those of a run that ended between its last row and them.
    """
    if is_free(plan.run_dir, DESCRIPTION, plan.scenario.digest, "run", "scenario's run"):
        return True
    if overwrite or not {cell.name for cell in plan.cells} <= finished_cells(plan.run_dir):
        return True
    if not all((plan.run_dir / name).exists() for name in TABLE_FILES):
        with locked(plan.run_dir):
            Ledger(plan.run_dir, swept=plan.cells[0].swept).write_tables()
    return False


def is_free(folder: Path, description: str, digest: str, what: str, of: str) -> bool:
    """Whether nothing lies there yet; False where it is what has this digest, of which the file `description` tells.
    InputError where it is anything else. what, of: what errors call it, and another one."""
    check_out(folder)
    if not folder.exists() or not any(path.name != LOCK for path in folder.iterdir()):
        return True
    there = folder / description
    found = read_description(there).get("digest") if there.exists() else None
    if found is None:
        raise InputError(f"{str(folder)!r} holds something that is no fedspill {what}: choose another --out")
    if found != digest:
        raise InputError(f"{str(folder)!r} already holds another {of}: choose another --out")
    return False


@contextlib.contextmanager
def claimed(plan: "RunPlan", overwrite: bool = False) -> Iterator[None]:
    """Make the run directory and describe the run in it; with `overwrite`, forget the tables of an earlier one.

    Inside, other processes are kept out. RunError where one is in.
    """
    with claimed_folder(plan.run_dir, DESCRIPTION, describe(plan.scenario), overwrite):
        yield


@contextlib.contextmanager
def claimed_folder(folder: Path, name: str, description: dict[str, object], overwrite: bool) -> Iterator[None]:
    """The folder, made and described in the file `name`, for this process alone: two runs would write over each
    other's journal."""
    make_out(folder)
    with locked(folder):
        if overwrite:
            for table in (JOURNAL, *TABLE_FILES):
                (folder / table).unlink(missing_ok=True)
        write_atomically(folder / name, yaml.safe_dump(description, sort_keys=False, allow_unicode=True))
        yield


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes out of a run directory; RunError where one is in."""
    try:
        lock = FileLock(run_dir / LOCK, timeout=0).acquire()
    except Timeout:
        raise RunError(
            f"another process is running in {str(run_dir)!r}: wait for it, or choose another --out"
        ) from None
    with lock:
        yield


def describe(scenario: Scenario) -> dict[str, object]:
    """The resolved scenario, its digest, and what it ran on."""
    return {"scenario": scenario.model_dump(mode="json"), "digest": scenario.digest, **surroundings()}


def surroundings() -> dict[str, object]:
    """When and on what something ran."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {name: metadata.version(name) for name in RECORDED_VERSIONS},
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }
