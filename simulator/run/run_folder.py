"""The run directory: its description, whether a run may start in it, and the lock that keeps others out."""

import contextlib
import datetime
import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

from attacks.interface.errors import InputError, one_line
from clients.data.partition import fingerprint
from clients.local_update import code_version
from simulator.results import disk
from simulator.results.ledger import JOURNAL, TABLES, Ledger, out_of_time, read_journal
from simulator.run.plan import RunPlan, attacks_again
from simulator.run_errors import RunError
from simulator.rundir.run import DESCRIPTION, read_description
from simulator.scenario.scenario import Scenario
from simulator.scenario.yaml_source import leaves

SURROUNDINGS = ("started", "versions", "machine")  # of a description: the keys that say when and on what
RECORDED_VERSIONS = ("fedspill", "torch", "numpy", "flwr", "ray", "flwr-datasets", "scipy", "scikit-image")


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """Describe a run, except its input files: the resolved scenario, its digest, versions and machine."""
    return {"scenario": scenario.model_dump(mode="json"), "digest": scenario.digest, **surroundings()}


def inputs_of(plan: RunPlan) -> dict[str, str]:
    """Return digests of the images, the files of code and the checkpoints that a run uses, by what they are."""
    found = {}
    for cell in plan.cells:
        pretrain = cell.scenario.model.pretrain
        others = [] if pretrain is None or pretrain.data is None else [pretrain.data]
        for data in (cell.scenario.data, *others):
            name = f"data {data.name!r}" + (f" of {data.root!r}" if data.root else "")
            if name not in found:
                found[name] = fingerprint(data)
    texts = {value for _, value in leaves(plan.scenario.model_dump(mode="json")) if isinstance(value, str)}
    for name in sorted({text.partition(":")[0] for text in texts if ":" in text}):
        file = name if name.endswith(".py") else getattr(sys.modules.get(name), "__file__", None)
        if file and os.path.isfile(file):
            found[f"code {name!r}"] = disk.contents_digest(Path(file))[:16]
    for checkpoint in sorted({cell.scenario.model.checkpoint or "" for cell in plan.cells}):
        if os.path.isfile(checkpoint):
            found[f"checkpoint {checkpoint!r}"] = disk.contents_digest(Path(checkpoint))[:16]
    return found


def surroundings() -> dict[str, object]:
    """Return the time, the versions and the machine of this process."""
    versions = {name: metadata.version(name) for name in RECORDED_VERSIONS}
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {**versions, "code of attacks and clients": code_version()},
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def resumed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a run that is resumed: versions and machine of now are added if they have changed."""
    others = before.get("resumed")
    earlier = others if isinstance(others, list) else []
    made = {name: now[name] for name in SURROUNDINGS}
    if not differences((earlier or [before])[-1], now):
        return before
    return {**before, "resumed": [*earlier, made]}


def differences(before: Any, now: dict[str, Any]) -> list[str]:
    """Return a line if two descriptions were made by different versions, else none."""
    old, new = (one.get("versions") if isinstance(one, dict) else None for one in (before, now))
    old, new = (one if isinstance(one, dict) else {} for one in (old, new))
    changed = [f"{name} {old.get(name, 'unknown')}, now {new[name]}" for name in new if old.get(name) != new[name]]
    if not changed:
        return []
    return [f"begun with {'; '.join(changed)}: its tables will hold rows of both"]


NO_MATTER = ("output.", "engine.", "adversary.timeout")  # keys of a scenario that change no table
TABLE_FILES = ("leakage.csv", *(f"{table}.parquet" for table in TABLES))


def needs_run(plan: RunPlan, overwrite: bool = False) -> bool:
    """Return whether there is something to run: the directory is free, or this scenario is not finished there, or
    attacks ran out of time and can be tried again.

    Raise InputError if something else lies there, or if the images or the code have changed since the run began. Tables
    that are missing are written: those of a run that ended between its last row and them.
    """
    why = partial(_difference, plan.scenario.content)
    if is_free(plan.run_dir, DESCRIPTION, plan.scenario.digest, "run", "scenario's run", why) or overwrite:
        return True
    before, now = read_description(plan.run_dir / DESCRIPTION).get("inputs"), inputs_of(plan)
    changed = [name for name, digest in now.items() if not isinstance(before, dict) or before.get(name) != digest]
    if changed:
        raise InputError(
            f"{changed[0]} is not what it was when {str(plan.run_dir)!r} was begun: one table would hold both; "
            "choose another --out, or do all of it again with --overwrite"
        )
    wanted = {cell.name for cell in plan.cells}
    # whoever goes on reads every checkpoint anyway, with the folder locked
    if not all(wanted <= read_journal(plan.run_dir / JOURNAL, with_files).done for with_files in (False, True)):
        return True
    if attacks_again(plan, out_of_time(read_journal(plan.run_dir / JOURNAL, with_files=False))):
        return True
    if not all((plan.run_dir / name).exists() for name in TABLE_FILES):
        with locked(plan.run_dir):
            Ledger(plan.run_dir, swept=plan.cells[0].swept).write_tables()
    return False


def is_free(
    folder: Path, description: str, digest: str, what: str, of: str, why: Callable[[dict[str, Any]], str] = lambda _: ""
) -> bool:
    """Return True if `folder` is empty, False if it holds the run with this digest. Raise InputError if it holds
    anything else.

    description: the name of the file that describes a run. what, of: nouns for the error messages, such as "run" and
    "scenario's run". why: returns the difference to the description of another run, for the error message.
    """
    disk.check_out(folder)
    if not folder.exists() or not any(path.name != disk.LOCK for path in folder.iterdir()):
        return True
    path = folder / description
    there = read_description(path) if path.exists() else {}
    if there.get("digest") is None:
        raise InputError(f"{str(folder)!r} holds something that is no fedspill {what}: choose another --out")
    if there["digest"] != digest:
        raise InputError(f"{str(folder)!r} already holds another {of}{why(there)}: choose another --out")
    return False


def _difference(content: dict[str, Any], description: dict[str, Any]) -> str:
    """Return in brackets the first value of a scenario that has changed since a run was begun; "" if none has."""
    begun = description.get("scenario", {})
    before, now = ({".".join(map(str, key)): value for key, value in leaves(one)} for one in (begun, content))
    changed = [key for key in now if key in before and before[key] != now[key]]
    added = [key for key in now if key not in before]
    gone = [key for key in before if key not in now and not key.startswith(NO_MATTER)]
    for key in (changed + added + gone)[:1]:
        return f" ({key} is {_shown(before, key)} there, {_shown(now, key)} here)"
    return ""


def _shown(values: dict[str, Any], key: str) -> str:
    return one_line(repr(values[key]), most=60) if key in values else "not"


def claimed(plan: RunPlan, overwrite: bool = False) -> contextlib.AbstractContextManager[list[str]]:
    """Make the run directory, describe the run in it and keep other processes out; yield lines for the user.

    overwrite: remove the tables of an earlier run. Raise RunError if another process runs there.
    """
    description = {**describe_scenario(plan.scenario), "inputs": inputs_of(plan)}
    return claimed_folder(plan.run_dir, DESCRIPTION, description, overwrite)


@contextlib.contextmanager
def claimed_folder(folder: Path, name: str, description: dict[str, Any], overwrite: bool) -> Iterator[list[str]]:
    """Make a folder, describe it in the file `name` and keep other processes out: two runs would write over each
    other's journal. Yield lines for the user: that the run was begun with other versions."""
    disk.make_out(folder)
    with locked(folder):
        before = read_description(folder / name) if (folder / name).exists() else {}
        if overwrite:
            for table in (JOURNAL, *TABLE_FILES):
                with disk.writing(folder / table):
                    (folder / table).unlink(missing_ok=True)
        taken_up = not overwrite and before.get("digest") == description["digest"]
        content = resumed(before, description) if taken_up else description
        disk.write_atomically(folder / name, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
        yield differences(before, description) if taken_up else []


def check_unused(run_dir: Path) -> None:
    """Raise RunError if another process runs in a run directory, before Ray is started. Write nothing."""
    if disk.is_occupied(run_dir):
        raise RunError(_occupied(run_dir))


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes out of a run directory; raise RunError if one runs there, and InputError if something in it
    is neither file nor folder: a link would be followed, and a pipe waited for."""
    with disk.writing(run_dir / disk.LOCK):
        lock = disk.acquired(run_dir, _occupied(run_dir))
    with lock:
        for folder, folders, files in os.walk(run_dir):
            for path in (Path(folder, name) for name in (*folders, *files)):
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    kind = "a link" if path.is_symlink() else "no file"
                    raise InputError(
                        f"{str(path)!r} is {kind}, and nothing is written through it: remove it, or choose another "
                        "--out"
                    )
        yield


def _occupied(run_dir: Path) -> str:
    return f"another process is running in {str(run_dir)!r}: wait for it, or choose another --out"
