"""A scenario: the whole experiment as validated, immutable sections."""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, model_validator

from attacks.interface.errors import InputError, one_line
from clients.chain import build_defense
from clients.config import (
    ClientConfig,
    DataConfig,
    DefenseConfig,
    ModelConfig,
    PartitionConfig,
    Section,
    TrainingConfig,
    as_json,
)
from clients.defenses import Defense
from clients.defenses.base import DefenseEnvironment, ObservedUpdate
from clients.defenses.guarantee import Adversary
from clients.models import with_known_options
from simulator.results.threat_models import View, all_views
from simulator.scenario import yaml_source
from simulator.scenario.sections import (
    AdversaryConfig,
    AttackConfig,
    EngineConfig,
    FederationConfig,
    KeepLast,
    OutputConfig,
)
from simulator.scenario.sweep import SweepGrid
from simulator.scenario.yaml_source import YamlSource


def _of_a_known_defense(config: DefenseConfig) -> DefenseConfig:
    build_defense(config)
    return config


class Scenario(Section):
    """One experiment, or a grid of them (`sweep`: dotted key -> values; a swept seed pairs the cells).

    "a + b": [[x, y], …] moves two keys together, as one axis of the grid.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="names the run directory")
    label: str | None = Field(
        None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.=-]*$", description="the column `defense`, instead of the chain's name"
    )
    seed: Annotated[int, Field(ge=0)] = Field(0, description="of every random stream: data, weights, training, attacks")
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: Annotated[ModelConfig, AfterValidator(with_known_options)] = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    federation: FederationConfig = FederationConfig()
    engine: EngineConfig = EngineConfig()
    defenses: list[Annotated[DefenseConfig, AfterValidator(_of_a_known_defense)]] = Field(
        default_factory=list, description="names, or {name, label, options …}, applied in this order; default none"
    )
    adversary: AdversaryConfig = AdversaryConfig()
    output: OutputConfig = OutputConfig()
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default_factory=dict,
        description='dotted key: [values]; every combination runs, in one simulation; "a + b": [[x, y], …] pairs keys',
    )

    @property
    def content(self) -> dict[str, Any]:
        """Everything that the tables depend on, as plain data, except time limits: rows out of time are tried again."""
        # of the output only diagnostics change tables, and only if they are off: their columns are empty then
        output = True if self.output.diagnostics else {"root", "figures", "keep", "track"}
        return self.model_dump(
            mode="json",
            exclude={
                "output": output,
                "engine": {"cpus", "gpus", "address", "attack_workers"},
                "adversary": {"timeout"},
            },
        )

    @cached_property
    def digest(self) -> str:
        """The experiment's identity: equal digests mean equal tables on the same machine and version."""
        digest = hashlib.sha256(json.dumps(self.content, sort_keys=True).encode())
        for path in (self.model.checkpoint, self.model.name.partition(":")[0]):
            if path is not None and Path(path).is_file():
                digest.update(Path(path).read_bytes())
        return digest.hexdigest()[:10]

    def with_images(self, count: int) -> "Scenario":
        """Return the scenario with so many images for every client."""
        return self.model_copy(update={"partition": self.partition.model_copy(update={"images": count})})

    @property
    def defense(self) -> str:
        """The name of the chain of defenses in the tables, or the label instead."""
        return self.label or "+".join(defense.label for defense in self.defenses) or "none"

    @property
    def views(self) -> list[View]:
        return all_views(self.adversary.threat_models, self.hides_clients)

    def keeps(self, round: int) -> bool:
        """Return whether the checkpoints of a round are written: for its attacks, for attacks of a later round that
        look at all rounds so far, or by `output.keep`."""
        if self.output.keep != "attacked":
            return True
        attacked = 1 <= round <= self.federation.rounds and self.adversary.attacks_in(round)
        return attacked or (round >= 1 and self.looks_back_after(round))

    @property
    def kept_rounds(self) -> int | None:
        """The number of last rounds that are kept; None if `output.keep` has no number."""
        keep = self.output.keep
        return keep.last if isinstance(keep, KeepLast) else None

    def leaves(self, round: int) -> bool:
        """Return whether the checkpoints of a round are there after the run."""
        last = self.kept_rounds
        return self.keeps(round) if last is None else 0 <= self.federation.rounds - round < last

    def looks_back_after(self, round: int) -> bool:
        """Return whether an attack of a later round looks at all rounds so far."""
        rounds, when = self.federation.rounds, self.adversary.when
        last = rounds if when == "every" else max(when, default=0)
        return round < last and any(view.all_rounds for view in self.views)

    @property
    def attacks(self) -> list[AttackConfig]:
        seen = {attack.label for view in self.views for attack in self.attacks_by(view.adversary)}
        return [attack for attack in self.adversary.attacks if attack.label in seen]

    def attacks_by(self, adversary: Adversary) -> list[AttackConfig]:
        """Return the attacks of an adversary: adaptive ones only if there is something to tell about the defenses."""
        adaptable = any(one.known_to_adaptive_attacker() or one.tells_noise_to(adversary) for one in self.chain)
        return [attack for attack in self.adversary.attacks if adaptable or not attack.adaptive]

    def defense_facts(self, observed: ObservedUpdate | None = None) -> dict[str, Any]:
        """Return the fields of `Knowledge` that an adaptive attacker has of the chain. observed: the update that it
        looks at, to tell the noise in it."""
        facts: dict[str, Any] = {}
        for defense in self.chain:
            facts |= defense.known_to_adaptive_attacker()
        noises = [] if observed is None else [one.noise_told(observed) for one in self.chain]
        if told := [noise for noise in noises if noise is not None]:
            facts["noise_std"] = math.hypot(*told)
        return facts

    @property
    def swept(self) -> list[str]:
        """The dotted keys of the sweep; keys that move together count one by one."""
        return list(SweepGrid.of(self.sweep).axis_of)

    @cached_property
    def chain(self) -> tuple[Defense, ...]:
        """The defenses in the order in which they apply."""
        return tuple(map(build_defense, self.defenses))

    @property
    def hides_clients(self) -> bool:
        """Whether the server sees the sum of a round's updates only."""
        return any(defense.server_half().hides_clients for defense in self.chain)

    @property
    def replies_a_round(self) -> int:
        """The number of updates of a round that the server sees: one if it sees the sum."""
        return 1 if self.hides_clients else self.federation.clients_a_round

    @property
    def poisson(self) -> bool:
        """Whether each client takes part in a round by a coin of its own."""
        return any(defense.server_half().poisson for defense in self.chain)

    @model_validator(mode="after")
    def _sweeps_what_differs(self) -> "Scenario":
        for key in self.swept:
            if key.partition(".")[0] in ("engine", "output", "name", "sweep"):
                raise ValueError(f"sweep: {key!r} is the same for the whole run")
        return self

    @model_validator(mode="after")
    def _mixes_what_can_be_mixed(self) -> "Scenario":
        if self.training.autocast is not None and self.model.precision != "float32":
            raise ValueError(f"training.autocast mixes with float32, model.precision is {self.model.precision}")
        return self

    @model_validator(mode="after")
    def _chain_is_possible(self) -> "Scenario":
        labels = [defense.label for defense in self.defenses]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"defenses: two are called {label!r}: give each a `label` of its own")
        strategy = self.federation.strategy
        around = DefenseEnvironment(self.chain, self.training, strategy.name, strategy.plain_mean)
        if conflict := next(filter(None, (defense.conflict(around) for defense in self.chain)), ""):
            raise ValueError(conflict)
        hiding = next((one.name for one in self.chain if one.server_half().hides_clients), None)
        if hiding is None:
            return self
        for defense in self.chain:  # in any order: it is the server that looks at single updates
            half = defense.server_half()
            if half.needs_single_updates:
                raise ValueError(f"defenses: {hiding} with {defense.name} leaves the server sums, and {half.if_hidden}")
        if single := strategy.needs_single_updates:
            raise ValueError(
                f"defenses: {hiding} leaves the server sums, and federation.strategy {single!r} needs the update of "
                "each client: use one that averages, as FedAvg or FedAdam; to clip, the defense clipping on the clients"
            )
        return self

    def cells(self, source: YamlSource | None = None) -> list["Cell"]:
        """Return the cells of the sweep, seeds innermost so that paired cells stand together; one cell without a sweep.
        source: of the sweep, so that errors name the line of the axis."""
        base = self.model_dump(mode="json", exclude={"sweep"})
        grid = SweepGrid.of(self.sweep)
        where = YamlSource({}) if source is None else source
        cells: dict[str, Cell] = {}
        for point in grid.points():
            data = base
            for key, value in point.items():
                data = yaml_source.assign(data, key, value)
            # keys without an axis are set by a row of the defenses
            lines = {
                yaml_source.as_key(key): where.where(("sweep", grid.axis_of.get(key, "defenses"))) for key in point
            }
            try:
                scenario = validate(YamlSource(data, lines))
            except InputError as error:
                row = f" (row {point['label']!r})" if "label" in point else ""
                raise InputError(f"{error}{row}") from None
            name = grid.name_of(point, scenario.defense)
            if name in cells:
                raise InputError(f"sweep: two settings are called {name!r}: give each value once, or a `label`")
            columns = {"cell": name, **grid.columns_of(point)} if name else {}
            cells[name] = Cell(name, columns, scenario, grid.words_of(point, scenario.defense))
        return list(cells.values())


@dataclass(frozen=True)
class Cell:
    """One point of a sweep.

    name: "" without a sweep, and so are its words, which say its values.
    swept: its values by dotted key, as columns show them.
    """

    name: str
    swept: dict[str, Any]
    scenario: Scenario
    words: str = ""

    def client_config(self, use_gpu: bool) -> ClientConfig:
        scenario = self.scenario
        return ClientConfig(
            seed=scenario.seed,
            clients=scenario.federation.clients,
            data=scenario.data,
            partition=scenario.partition,
            model=scenario.model,
            training=scenario.training,
            defenses=scenario.defenses,
            rounds=scenario.federation.rounds,
            fraction=scenario.federation.fraction,
            cell=self.name,
            use_gpu=use_gpu,
            threads=scenario.engine.threads,
        )


def load_scenario(path: str | Path, overrides: list[str] | None = None) -> Scenario:
    """Read, merge and validate a scenario file. overrides: "a.b=c" strings, as of --set."""
    return load_source(prepare(yaml_source.read_yaml(Path(path)), overrides))


def prepare(source: YamlSource, overrides: list[str] | None = None) -> YamlSource:
    """Return the source with shorthands written out and the overrides of the command line applied."""
    source = YamlSource(dict(source.data), dict(source.lines))
    _expand_shorthands(source.data)
    apply_overrides(source, overrides or [])
    source.data = {key: value for key, value in source.data.items() if (key, value) != ("sweep", None)}
    return source


def load_source(source: YamlSource) -> Scenario:
    scenario = validate(source)
    scenario.cells(source)  # raises an error now, not in the middle of the run
    return scenario


def apply_overrides(source: YamlSource, overrides: list[str]) -> None:
    """Apply the "a.b=c" of --set in place; errors about those keys will name the option."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise InputError(f"--set {override!r}: write key=value")
        source.data = yaml_source.assign(source.data, key.strip(), yaml_source.parse_value(text))
        named = yaml_source.as_key(key.strip())
        source.lines = {line: where for line, where in source.lines.items() if line[: len(named)] != named}
        source.lines[named] = f"--set {one_line(override)}"


def _expand_shorthands(data: dict[str, Any]) -> None:
    """Make mappings of `strategy: NAME` and `attacks: [NAME]`, so that --set and sweeps can reach into them."""
    federation, adversary = data.get("federation"), data.get("adversary")
    if isinstance(federation, dict) and isinstance(federation.get("strategy"), str):
        data["federation"] = {**federation, "strategy": {"name": federation["strategy"]}}
    if isinstance(adversary, dict) and isinstance(adversary.get("attacks"), list):
        attacks = [{"name": attack} if isinstance(attack, str) else attack for attack in adversary["attacks"]]
        data["adversary"] = {**adversary, "attacks": attacks}


def validate(source: YamlSource) -> Scenario:
    """Return the Scenario, or raise one InputError that names the key, its line, the value and the nearest name."""
    for key, value in yaml_source.leaves(source.data):
        if isinstance(value, float) and not math.isfinite(value):  # JSON would have null, which says "not given"
            name = ".".join(map(str, key))
            raise InputError(f"{source.prefix(key)}{name} is {value}: input should be a finite number")
    text = as_json(yaml_source.absolute_paths(source.data), "a scenario")
    try:
        return Scenario.model_validate_json(text)
    except ValidationError as error:
        raise InputError(yaml_source.describe_error(error.errors(), source, Scenario)) from None
