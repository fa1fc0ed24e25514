"""A finished or interrupted run, opened for reading: its tables, its observations, and attacking it again."""

from functools import cached_property
from pathlib import Path

import pandas as pd
import yaml

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.interface.attack import Progress, silent
from attacks.interface.errors import nearest
from simulator.adversary.attack_run import AttackRun
from simulator.results.keys import ALL, ObservationKey
from simulator.results.storage import CellStore
from simulator.scenario.scenario import Cell, Scenario, validate
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import Source

DESCRIPTION = "scenario.yaml"  # of a run, in its directory


def read_description(path: Path) -> dict:
    """scenario.yaml of a run directory; InputError where it is damaged."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{str(path)!r} cannot be read ({reason}): the run directory is damaged") from None
    return content if isinstance(content, dict) else {}


def _table(name: str) -> cached_property[pd.DataFrame]:
    """A table of a run, read when it is asked for; InputError where the run did not finish."""

    def read(run: "Run") -> pd.DataFrame:
        path = run.path / f"{name}.parquet"
        if not path.exists():
            raise InputError(f"run {str(run.path)!r} has no {path.name}: it did not finish; run it again to resume")
        return pd.read_parquet(path)

    return cached_property(read)


class Run:
    """A run directory.

    run = load("runs/quickstart-0123456789")
    run.leakage                                   # the leakage table, a pandas DataFrame
    observation, knowledge = run.observation(1, 0)  # what the server saw of client 0 in round 1
    run.attack(1, 0, "ntk").images                # attacked again, bit for bit as in the run
    """

    leakage, samples = _table("leakage"), _table("samples")
    utility, clients = _table("utility"), _table("clients")

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
            which = (
                f"cell {cell!r}" if cell else "cell without a name: it is a sweep, choose one by `cell`, with --cell"
            )
            raise InputError(f"run {str(self.path)!r} has no {which}{nearest(cell, sorted(self.cells))}")
        return CellStore(self.path, cell)

    def observation(
        self, round: int, client: int = ALL, threat_model: str = "server", cell: str = ""
    ) -> tuple[Observation, Knowledge]:
        """What the adversary saw and was granted, from the checkpoints folder alone. client: −1 for all of them."""
        return self.store(cell).load(ObservationKey(round, client, threat_model))

    def attack(
        self,
        round: int,
        client: int,
        attack: str | AttackConfig,
        threat_model: str = "server",
        *,
        cell: str = "",
        knowledge: Knowledge | None = None,
        progress: Progress = silent,
    ) -> Reconstruction:
        """Attack a recorded observation. An attack named as in the scenario has the scenario's options and seed."""
        key = ObservationKey(round, client, threat_model)
        observation, granted = self.store(cell).load(key)
        return self.attack_run(attack, key, cell).run(observation, knowledge or granted, progress)

    def attack_run(self, attack: str | AttackConfig, key: ObservationKey, cell: str = "") -> AttackRun:
        """An attack as the run would have it: with the cell's seed, threads and what there is to know of its defense.

        A name is a label of the scenario's, or that of any attack, which then has its default options.
        """
        scenario = self.cells[cell].scenario
        if isinstance(attack, str):
            default = AttackConfig.model_construct(name=attack, label=attack)
            attack = next((config for config in scenario.adversary.attacks if config.label == attack), default)
            attack.make()  # refuses a wrong name
        return AttackRun.of(attack, scenario, self.store(cell).recorded(key).defense_facts)


def load(path: str | Path) -> Run:
    """Open a run directory."""
    return Run(path)
