"""A scenario: the whole experiment as validated, immutable sections."""

import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from attacks import ATTACKS, Attack, InputError, Knowledge
from attacks.base import check_options
from attacks.errors import nearest
from clients.config import (
    ClientConfig,
    Count,
    DataConfig,
    DefenseConfig,
    Fraction,
    ModelConfig,
    PartitionConfig,
    Positive,
    Section,
    TrainingConfig,
)
from simulator.yaml_source import Key, Source, assign, merge, parse_value, read_yaml


class StrategyConfig(Section):
    """A Flower strategy by its class name, with keyword arguments of its constructor."""

    name: str = "FedAvg"
    options: dict[str, Any] = Field(default_factory=dict)


class FederationConfig(Section):
    """Rounds, clients, and how their updates are aggregated."""

    rounds: Count = 2
    clients: Count = 3
    fraction: Fraction = Field(1.0, description="share of the clients that trains in a round")
    strategy: StrategyConfig = Field(StrategyConfig(), description="a Flower strategy: its name, or {name, options}")
    timeout: Positive = Field(600.0, description="seconds that the server waits for a round's replies")
    max_failures: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="stop the run when more than this share of a round's clients fails"
    )

    @model_validator(mode="before")
    @classmethod
    def _strategy_by_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("strategy"), str):
            return {**values, "strategy": {"name": values["strategy"]}}
        return values


class EngineConfig(Section):
    """Where it runs. Clients are Ray actors; attacks are Ray tasks on the same cluster."""

    cpus: Positive = Field(1.0, description="CPU share of one client")
    gpus: Annotated[float, Field(ge=0)] | None = Field(
        None, description="GPU share of one client; default: 0.3 where there is a GPU, else 0"
    )
    address: str | None = Field(None, description="an existing Ray cluster; default: one of our own on this machine")
    attack_workers: Count | None = Field(None, description="attacks at a time; default: the number of CPU cores")
    threads: Count = Field(1, description="torch threads of each client and attack")


class AttackConfig(Section):
    """One attack of the adversary: its name, its options beside it, and a label where a name occurs twice.

    adaptive: whether it is told which defense is in force (`Knowledge`: noise, mask, quantization, clip bound).
    """

    name: str
    label: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    adaptive: bool = False
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, values: Any) -> Any:
        """`ntk`, `{name: ntk, iterations: 4000}` and the resolved form all mean the same."""
        if isinstance(values, str):
            values = {"name": values}
        if not isinstance(values, dict) or "name" not in values:
            return values
        options = {key: value for key, value in values.items() if key not in ("name", "label", "adaptive", "options")}
        adaptive = values.get("adaptive", False)
        return {
            "name": values["name"],
            "label": values.get("label", f"{values['name']}-adaptive" if adaptive is True else values["name"]),
            "adaptive": adaptive,
            "options": {**values.get("options", {}), **options},
        }

    @model_validator(mode="after")
    def _known(self) -> "AttackConfig":
        self.make()
        return self

    def make(self) -> Attack:
        """The attack with its options type-checked; InputError names the option that is wrong."""
        check_options(self.name, self.options)
        try:
            return TypeAdapter(ATTACKS[self.name]).validate_json(json.dumps(self.options), strict=True)
        except ValidationError as error:
            wrong = error.errors()[0]
            message = wrong["msg"].removeprefix("Value error, ")
            option = f"option {wrong['loc'][0]!r} is {wrong['input']!r}: " if wrong["loc"] else ""
            raise InputError(message if not option else f"attack {self.name!r}: {option}{message}") from None


class AdversaryConfig(Section):
    """Who looks at what, with which attacks, knowing what."""

    threat_models: list[Literal["server", "observer", "history"]] = Field(
        ["server"],
        min_length=1,
        description="history: all rounds so far at once, for each of the others named, or for the server alone",
    )
    attacks: list[AttackConfig] = Field(
        default_factory=lambda: [AttackConfig.model_validate("ntk")],
        min_length=1,
        description="names, or {name, label, options …}; default ntk",
    )
    knowledge: dict[str, Any] = Field(
        default_factory=dict, description="field: true to grant the true value, or the value the adversary believes"
    )
    when: Literal["every"] | list[Count] = Field("every", description="rounds to attack: every, or a list")
    timeout: Positive = Field(3600.0, description="seconds that one attack may take")

    @model_validator(mode="before")
    @classmethod
    def _granted_by_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("knowledge"), list):
            return {**values, "knowledge": {str(name): True for name in values["knowledge"]}}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "AdversaryConfig":
        for name in self.knowledge:
            if name not in Knowledge.names():
                raise ValueError(f"unknown knowledge {name!r}{nearest(name, Knowledge.names())}")
        labels = [attack.label for attack in self.attacks]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"two attacks are called {label!r}: give each a `label` of its own")
        return self

    def attacks_in(self, round: int) -> bool:
        return self.when == "every" or round in self.when

    def views(self, client: int, hidden: bool = False) -> list[str]:
        """The threat models that look at a client, or, for −1, at the union of a round's clients.

        `history` goes over the rounds of every other one listed; where it stands alone, over those of the server.
        hidden: whether the server sees the union only (secure aggregation).
        """
        if hidden and client < 0:
            return [view for view in ("server", "observer", "history") if view in self.threat_models]
        single = "server" if client >= 0 else "observer"
        listed = single in self.threat_models
        follows = listed or (client >= 0 and "observer" not in self.threat_models)
        return [single] * listed + ["history"] * ("history" in self.threat_models and follows)


class OutputConfig(Section):
    """What a run writes, and where."""

    root: str = Field("runs", description="folder of run directories, where --out names none")
    figures: bool = True


def _clipping_on_server(strategy: StrategyConfig) -> str:
    """The name of a Flower strategy that clips each client's update on the server, also inside others; else ""."""
    if strategy.name.startswith("DifferentialPrivacyServerSide"):
        return strategy.name
    inner = strategy.options.get("strategy")
    if not inner:
        return ""
    return _clipping_on_server(StrategyConfig.model_validate({"name": inner} if isinstance(inner, str) else inner))


class Scenario(Section):
    """One experiment, or a grid of them (`sweep`: dotted key -> values; a swept seed pairs the cells)."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="names the run directory")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="of every random stream: data, weights, training, attacks")
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    federation: FederationConfig = FederationConfig()
    engine: EngineConfig = EngineConfig()
    defenses: list[DefenseConfig] = Field(
        default_factory=list, description="names, or {name, label, options …}, applied in this order; default none"
    )
    adversary: AdversaryConfig = AdversaryConfig()
    output: OutputConfig = OutputConfig()
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default_factory=dict, description="dotted key: [values]; every combination runs, in one simulation"
    )

    @cached_property
    def digest(self) -> str:
        """Identifies the experiment: equal digests mean equal tables on the same machine and version."""
        content = self.model_dump(
            mode="json", exclude={"output": True, "engine": {"cpus", "gpus", "address", "attack_workers"}}
        )
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        for path in (self.model.checkpoint, self.model.name.partition(":")[0]):
            if path is not None and Path(path).is_file():
                digest.update(Path(path).read_bytes())
        return digest.hexdigest()[:10]

    @property
    def defense(self) -> str:
        """How tables call the chain."""
        return "+".join(defense.label for defense in self.defenses) or "none"

    @property
    def attacks(self) -> list[AttackConfig]:
        """Those that run: an adaptive one only where there is something about the chain that it can be told."""
        adaptable = bool(self.defense_facts())
        return [attack for attack in self.adversary.attacks if adaptable or not attack.adaptive]

    def defense_facts(self) -> dict[str, Any]:
        """What an adaptive attacker is told of the chain: fields of `Knowledge`."""
        facts: dict[str, Any] = {}
        for defense in self.defenses:
            facts |= defense.make().public_facts()
        return facts

    @property
    def hides_clients(self) -> bool:
        """Whether the server sees the sum of a round's updates only."""
        return any(defense.make().hides_clients for defense in self.defenses)

    @model_validator(mode="after")
    def _sweeps_what_differs(self) -> "Scenario":
        for key in self.sweep:
            if key.partition(".")[0] in ("engine", "output", "name", "sweep"):
                raise ValueError(f"sweep: {key!r} is the same for the whole run")
        return self

    @model_validator(mode="after")
    def _chain_is_possible(self) -> "Scenario":
        hidden = ""
        labels = [defense.label for defense in self.defenses]
        for defense in self.defenses:
            if labels.count(defense.label) > 1:
                raise ValueError(f"defenses: two are called {defense.label!r}: give each a `label` of its own")
            made = defense.make()
            if hidden and getattr(made, "clipping", None) == "server":
                raise ValueError(
                    f"defenses: {hidden} before {defense.name} leaves the server sums, and nothing to clip per client: "
                    f"use {{name: {defense.name}, clipping: client}}"
                )
            hidden = defense.name if made.hides_clients else hidden
        if hidden and (strategy := _clipping_on_server(self.federation.strategy)):
            raise ValueError(
                f"defenses: {hidden} leaves the server sums, and federation.strategy {strategy!r} nothing to clip per "
                "client: clip on the clients, with the defense clipping"
            )
        return self

    def cells(self) -> list["Cell"]:
        """The grid of the sweep, seeds innermost so that paired cells stand together; one cell without a sweep."""
        base = self.model_dump(mode="json", exclude={"sweep"})
        keys = sorted(self.sweep, key=lambda key: key == "seed")
        cells: dict[str, Cell] = {}
        for values in itertools.product(*(self.sweep[key] for key in keys)):
            swept = dict(zip(keys, values, strict=True))
            data = base
            for key, value in swept.items():
                data = assign(data, key, value)
            scenario = validate(Source(data))
            parts = {key.rpartition(".")[2]: _short(value) for key, value in swept.items()}
            if "defenses" in swept:  # tables have a column for the chain
                parts = {"defense": _short(scenario.defense), **parts}
                del parts["defenses"]
            name = ",".join(f"{key}={value}" for key, value in parts.items())
            if name in cells:
                raise InputError(f"sweep: two cells are called {name!r}: give each value once, or a `label`")
            columns = {key: _as_column(value, self.sweep[key]) for key, value in swept.items() if key != "defenses"}
            cells[name] = Cell(name, {"cell": name, **columns} if name else {}, scenario)
        return list(cells.values())


@dataclass(frozen=True)
class Cell:
    """One point of a sweep. name: "" where there is no sweep; swept: its values by dotted key, as columns show them."""

    name: str
    swept: dict[str, Any]
    scenario: Scenario

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
    return load_source(prepare(read_yaml(Path(path)), overrides))


def prepare(source: Source, overrides: list[str] | None = None) -> Source:
    """With shorthands written out and the overrides of the command line applied."""
    source = Source(dict(source.data), dict(source.lines))
    _expand_shorthands(source.data)
    apply_overrides(source, overrides or [])
    return source


def load_source(source: Source) -> Scenario:
    """Validated, with every cell of its sweep."""
    scenario = validate(source)
    scenario.cells()  # a bad value of the sweep is an error now, not in the middle of the run
    return scenario


def apply_overrides(source: Source, overrides: list[str]) -> None:
    """Set what --set says, "a.b=c", in place; errors about those keys will name the option."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise InputError(f"--set {override!r}: write key=value")
        source.data = assign(source.data, key.strip(), parse_value(text))
        source.lines[tuple(key.strip().split("."))] = f"--set {override}"


def _expand_shorthands(data: dict[str, Any]) -> None:
    """`strategy: NAME` and `attacks: [NAME]` become mappings, so that --set and sweeps can reach into them."""
    federation, adversary = data.get("federation"), data.get("adversary")
    if isinstance(federation, dict) and isinstance(federation.get("strategy"), str):
        data["federation"] = {**federation, "strategy": {"name": federation["strategy"]}}
    if isinstance(adversary, dict) and isinstance(adversary.get("attacks"), list):
        attacks = [{"name": attack} if isinstance(attack, str) else attack for attack in adversary["attacks"]]
        data["adversary"] = {**adversary, "attacks": attacks}


def _absolute_paths(data: dict[str, Any]) -> dict[str, Any]:
    """Workers on other nodes and in other folders, and later readers of a run, have to find the same files."""
    for section, key in (("data", "root"), ("model", "checkpoint"), ("model", "name")):
        value = data[section].get(key) if isinstance(data.get(section), dict) else None
        if isinstance(value, str) and (key != "name" or ".py:" in value):
            file, colon, factory = value.partition(".py:")
            path = str(Path(file + colon.rstrip(":")).expanduser().resolve())
            data = {**data, section: {**data[section], key: f"{path}:{factory}" if colon else path}}
    return data


def validate(source: Source) -> Scenario:
    """A Scenario, or one InputError that names the key, its line, the value and the nearest valid name."""
    try:
        return Scenario.model_validate_json(json.dumps(_absolute_paths(source.data)))
    except ValidationError as error:
        raise InputError(_explain(error.errors()[0], source)) from None
    except TypeError as error:
        raise InputError(f"a scenario holds plain YAML values only: {error}") from None


def _explain(error: Any, source: Source) -> str:
    key: Key = tuple(part for part in error["loc"] if not _is_union_branch(part))
    dotted = ".".join(map(str, key))
    where = source.where(key)
    prefix = f"{where}: " if where else ""
    if error["type"] == "extra_forbidden":
        return f"{prefix}unknown key {dotted!r}{nearest(str(key[-1]), _known_keys(key[:-1]))}"
    if error["type"] == "missing":
        return f"{prefix}key {dotted!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    value = error["input"]
    shown = f" is {value!r}" if not isinstance(value, dict) and len(repr(value)) < 60 else ""
    return f"{prefix}{dotted or 'scenario'}{shown}: {message}"


def _is_union_branch(part: str | int) -> bool:
    """pydantic adds the branch of a union to the location of an error: no key of ours."""
    named = ("int", "float", "str", "constrained-int")
    return isinstance(part, str) and (part in named or any(c in part for c in "[](){},' "))


def _known_keys(parent: Key) -> list[str]:
    """The valid keys of a section."""
    section: Any = Scenario
    for part in parent:
        annotation = section.model_fields[part].annotation if part in getattr(section, "model_fields", {}) else None
        candidates = [annotation, *getattr(annotation, "__args__", ())]  # Section, or Section | None
        section = next((candidate for candidate in candidates if hasattr(candidate, "model_fields")), None)
    return list(section.model_fields) if section is not None else []


def _as_column(value: Any, values: list[Any]) -> Any:
    """A swept value as the tables hold it: itself where all are plain and of one type, else as JSON text."""
    plain = all(isinstance(other, bool | int | float | str) for other in values)
    one_type = len({type(other) for other in values}) == 1
    return value if plain and one_type else json.dumps(value, sort_keys=True)


def _short(value: Any) -> str:
    """A value as a part of a folder's name; with a few digits of its hash where it had to be changed for that."""
    text = json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else str(value)
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in text)[:40]
    return name if name == text else f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


__all__ = ["Cell", "Scenario", "load_scenario", "merge", "validate"]
