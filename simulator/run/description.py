"""What a run directory says of its run: the scenario, what it reads, and what it ran on, begun and resumed."""

import datetime
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clients.data.fingerprint import fingerprint
from clients.environment import code_version
from simulator.results.disk import contents_digest
from simulator.scenario.scenario import Scenario
from simulator.scenario.yaml_source import leaves

if TYPE_CHECKING:
    from simulator.run.plan import RunPlan

SURROUNDINGS = ("started", "versions", "machine")  # of a description: the keys that say when and on what
RECORDED_VERSIONS = ("fedspill", "torch", "numpy", "flwr", "ray", "flwr-datasets", "scipy", "scikit-image")


def describe(plan: "RunPlan") -> dict[str, Any]:
    """The resolved scenario, its digest, what it ran on, and what it reads."""
    return {**describe_scenario(plan.scenario), "inputs": inputs_of(plan)}


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """The same without what it reads, which may be gone."""
    return {"scenario": scenario.model_dump(mode="json"), "digest": scenario.digest, **surroundings()}


def inputs_of(plan: "RunPlan") -> dict[str, str]:
    """Digests of the images that the cells of a run use, and of the files of code that it names, by what they are."""
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
            found[f"code {name!r}"] = contents_digest(Path(file))[:16]
    for checkpoint in sorted({cell.scenario.model.checkpoint or "" for cell in plan.cells}):
        if os.path.isfile(checkpoint):
            found[f"checkpoint {checkpoint!r}"] = contents_digest(Path(checkpoint))[:16]
    return found


def surroundings() -> dict[str, object]:
    """When and on what something ran."""
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
    """The description of a run that goes on: what it was begun with stays, and what it goes on with stands beside it
    where that is something else."""
    others = before.get("resumed")
    earlier = others if isinstance(others, list) else []
    made = {name: now[name] for name in SURROUNDINGS}
    if not differences((earlier or [before])[-1], now):
        return before
    return {**before, "resumed": [*earlier, made]}


def differences(before: Any, now: dict[str, Any]) -> list[str]:
    """A line where two descriptions were not made by the same versions; none where they were."""
    old, new = (one.get("versions") if isinstance(one, dict) else None for one in (before, now))
    old, new = (one if isinstance(one, dict) else {} for one in (old, new))
    changed = [f"{name} {old.get(name, 'unknown')}, now {new[name]}" for name in new if old.get(name) != new[name]]
    if not changed:
        return []
    return [f"begun with {'; '.join(changed)}: its tables will hold rows of both"]
