"""A finished or interrupted run, opened for reading: its tables, its observations, and attacking it again."""

from functools import cached_property
from pathlib import Path

import pandas as pd

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.interface.attack import Progress, silent
from attacks.interface.errors import nearest
from simulator.adversary.knowledge import adapted
from simulator.evaluation.job import run_attack
from simulator.results.storage import CellStore, Sight
from simulator.run.plan import DESCRIPTION, read_description
from simulator.scenario.scenario import Cell, Scenario, validate
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import Source


class Record:
    """A run directory.

    record = load("runs/quickstart-0123456789")
    record.leakage                                   # the leakage table, a pandas DataFrame
    observation, knowledge = record.observation(1, 0)  # what the server saw of client 0 in round 1
    record.attack(1, 0, "ntk").images                # attacked again, bit for bit as in the run
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not (self.path / DESCRIPTION).exists():
            raise InputError(f"{str(path)!r} is no run directory: it has no {DESCRIPTION}")
        self.description = read_description(self.path / DESCRIPTION)
        if not isinstance(self.description.get("scenario"), dict):
            raise InputError(f"{str(self.path / DESCRIPTION)!r} describes no run: it has no `scenario`")

    @cached_property
    def scenario(self) -> Scenario:
        return validate(Source(self.description["scenario"]))

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """The cells of the sweep by name; one cell called "" without a sweep."""
        return {cell.name: cell for cell in self.scenario.cells()}

    def store(self, cell: str = "") -> CellStore:
        if cell not in self.cells:
            raise InputError(f"run {str(self.path)!r} has no cell {cell!r}{nearest(cell, sorted(self.cells))}")
        return CellStore(self.path / "cells" / cell if cell else self.path)

    @cached_property
    def leakage(self) -> pd.DataFrame:
        return self._table("leakage")

    @cached_property
    def samples(self) -> pd.DataFrame:
        return self._table("samples")

    @cached_property
    def utility(self) -> pd.DataFrame:
        return self._table("utility")

    @cached_property
    def clients(self) -> pd.DataFrame:
        return self._table("clients")

    def observation(
        self, round: int, client: int = -1, threat_model: str = "server", cell: str = ""
    ) -> tuple[Observation, Knowledge]:
        """What the adversary saw and was told, from the checkpoints folder alone."""
        return self.store(cell).load(Sight(round, client, threat_model))

    def members(self, round: int, client: int = -1, threat_model: str = "server", cell: str = "") -> list[int]:
        """The clients whose images went into an observation: one, or for −1 all that replied (history: so far)."""
        if client >= 0:
            return [client]
        table = self.clients[self.clients.status == "ok"]
        table = table[table["cell"] == cell] if cell else table
        wanted = table["round"] <= round if threat_model == "history" else table["round"] == round
        return sorted(set(table[wanted].client))

    def attack(
        self,
        round: int,
        client: int,
        attack: str | AttackConfig,
        threat_model: str = "server",
        cell: str = "",
        knowledge: Knowledge | None = None,
        progress: Progress = silent,
    ) -> Reconstruction:
        """Attack a recorded observation. An attack named as in the scenario has the scenario's options and seed."""
        observation, told = self.observation(round, client, threat_model, cell)
        config = self.attack_config(attack, cell) if isinstance(attack, str) else attack
        scenario = self.cells[cell].scenario
        knowledge = adapted(knowledge or told, config, scenario)
        return run_attack(config, observation, knowledge, scenario.seed, scenario.engine.threads, progress)

    def attack_config(self, name: str, cell: str = "") -> AttackConfig:
        """The scenario's attack of that label, or the attack of that name with its default options."""
        for config in self.cells[cell].scenario.adversary.attacks:
            if config.label == name:
                return config
        config = AttackConfig.model_construct(name=name, label=name)  # a wrong name is for make() to refuse
        config.make()
        return config

    def _table(self, name: str) -> pd.DataFrame:
        path = self.path / f"{name}.parquet"
        if not path.exists():
            raise InputError(f"run {str(self.path)!r} has no {path.name}: it did not finish; run it again to resume")
        return pd.read_parquet(path)


def load(path: str | Path) -> Record:
    """Open a run directory."""
    return Record(path)
