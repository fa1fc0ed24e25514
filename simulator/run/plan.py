"""From a scenario to a run that can start: every input is checked and the folder chosen before anything is written."""

import contextlib
import datetime
import fcntl
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
import yaml

from attacks import InputError, Observation
from attacks.update.private_set import check_knowledge
from clients.chain import build_chain
from clients.client_app import load_mod
from clients.data.partition import FederatedData, split_data
from clients.defenses import DefenseContext
from clients.local_update import load_targets, make_model
from simulator.adversary.knowledge import adapted, grant
from simulator.errors import RunError
from simulator.results.ledger import JOURNAL, TABLES, finished_cells
from simulator.results.storage import check_out, make_out, write_atomically
from simulator.run.pretraining import Pretraining
from simulator.run.strategies import defended_strategy
from simulator.scenario.scenario import Cell, Scenario

DESCRIPTION, LOCK = "scenario.yaml", ".lock"
RECORDED_VERSIONS = ("fedspill", "torch", "numpy", "flwr", "ray", "flwr-datasets", "scipy", "scikit-image")


@dataclass(frozen=True)
class RunPlan:
    """A scenario that has passed every check, with its cells and where it will be written."""

    scenario: Scenario
    cells: tuple[Cell, ...]
    run_dir: Path

    @property
    def clients(self) -> int:
        """Nodes the simulation needs: the most that any cell asks for."""
        return max(cell.scenario.federation.clients for cell in self.cells)

    def cell_root(self, cell: Cell) -> Path:
        return self.run_dir / "cells" / cell.name if cell.name else self.run_dir


def make_plan(scenario: Scenario, out: Path | None = None) -> RunPlan:
    """Check everything that can be checked before a run: data, partition, model, labels, strategy, knowledge."""
    cells = tuple(scenario.cells())
    for cell in cells:
        check_cell(cell)
    run_dir = out or Path(scenario.output.root) / f"{scenario.name}-{scenario.digest}"
    return RunPlan(scenario, cells, run_dir.resolve())  # workers write there from folders of their own


def check_cell(cell: Cell) -> tuple[FederatedData, torch.nn.Module]:
    """Build what the cell will build; InputError says what does not fit."""
    scenario = cell.scenario
    data = cell_data(scenario)
    config = cell.client_config(use_gpu=False)
    model = make_model(config, data)
    load_targets(config, data.task, data.public()[1])
    if scenario.model.pretrain is not None:
        Pretraining.of(config, data).network()
    defended_strategy(scenario)
    for defense in build_chain(scenario.defenses):
        mod = defense.flower_mod()
        if mod is not None:
            load_mod(mod)
        defense.check(DefenseContext(config, round=1, client=0, model=model))
    knowledge, state = grant(scenario, data, [0]), model.state_dict()
    observation = Observation(model, ((state, state),), data.shape)
    check_knowledge(observation, knowledge)
    for attack in scenario.attacks:
        attack.make().check(observation, adapted(knowledge, attack, scenario))
    if scenario.adversary.when != "every":
        late = [round for round in scenario.adversary.when if round > scenario.federation.rounds]
        if late:
            raise InputError(f"adversary.when names round {late[0]}, federation.rounds is {scenario.federation.rounds}")
    return data, model


def cell_data(scenario: Scenario) -> FederatedData:
    return split_data(scenario.data, scenario.partition, scenario.federation.clients, scenario.seed)


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
    with (plan.run_dir / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"another process is running in {str(plan.run_dir)!r}: wait for it, or choose another --out"
            ) from None
        _begin(plan, overwrite)
        yield


def _begin(plan: RunPlan, overwrite: bool) -> None:
    if overwrite:
        for name in (JOURNAL, "leakage.csv", *(f"{table}.parquet" for table in TABLES)):
            (plan.run_dir / name).unlink(missing_ok=True)
    text = yaml.safe_dump(describe(plan.scenario), sort_keys=False, allow_unicode=True)
    write_atomically(plan.run_dir / DESCRIPTION, text)


def describe(scenario: Scenario) -> dict[str, object]:
    """The resolved scenario, its digest, and what it ran on."""
    versions = {name: metadata.version(name) for name in RECORDED_VERSIONS}
    machine = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    return {
        "scenario": scenario.model_dump(mode="json"),
        "digest": scenario.digest,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "machine": machine,
    }


def read_description(path: Path) -> dict:
    """scenario.yaml of a run directory; InputError where it is damaged."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{str(path)!r} cannot be read ({reason}): the run directory is damaged") from None
    return content if isinstance(content, dict) else {}
