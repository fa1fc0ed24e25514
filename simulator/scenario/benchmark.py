"""`fedspill benchmark`: defenses × attacks × threat models × seeds as one run.

A benchmark file is a scenario with a section `benchmark`. Every row and seed of it is a cell of one sweep, so that
cells with the same seed share data, initial weights and client schedule, and a benchmark resumes like any run.
"""

from pathlib import Path
from typing import Any

from pydantic import Field

from attacks.interface.errors import InputError, did_you_mean
from clients.config import Count, Section
from simulator.scenario.scenario import Scenario, apply_overrides, load_source, prepare, validate
from simulator.scenario.sweep import defense_point
from simulator.scenario.yaml_source import YamlSource, merge, read_section, read_yaml

SECTION = "benchmark"
NAMED, PLACE = "{name: …, option: [values]}", ("sweep", "defenses")


class BenchmarkConfig(Section):
    """Of a benchmark file only (`fedspill benchmark`): it compares chains of defenses, and settings."""

    defenses: list[list[Any] | str | dict[str, Any]] = Field(
        min_length=1,
        description="rows: none, a name, a list of defenses, one defense {name, options …}, or settings "
        "{label, set: {section.key: value}, defenses: [chain]}",
    )
    strengths: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="family: {name, option: [values]}: a defense at every value of one option, from weak to strong; "
        "each is a row FAMILY=VALUE, and equal_utility.csv compares the families at equal loss of accuracy",
    )
    seeds: Count = Field(3, description="that every row is run with, from the scenario's `seed` on")
    with_root: dict[str, Any] = Field(default_factory=dict, description="overrides where data.root is given")
    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict, description="name: overrides, benchmark too")

    def rows(self) -> list[Any]:
        """Return the values of the sweep's axis `defenses`."""
        rows: list[Any] = []
        for entry in self.defenses:  # a chain, or a row with settings
            single = isinstance(entry, str) or (isinstance(entry, dict) and "name" in entry)
            rows.append([] if entry == "none" else [entry] if single else entry)
        return rows + [row for family, defense in self.strengths.items() for row in strength_rows(family, defense)]


def strength_rows(family: str, defense: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return a chain for every value of the option that has a list, labelled FAMILY=VALUE."""
    swept = [option for option, value in defense.items() if isinstance(value, list)]
    if "name" not in defense or len(swept) != 1:
        raise InputError(f"benchmark.strengths.{family} is {defense!r}: write {NAMED}, with values of one option")
    return [[defense | {swept[0]: value, "label": f"{family}={value}"}] for value in defense[swept[0]]]


def load_any(path: Path, profile: str | None = None, overrides: list[str] | None = None) -> Scenario:
    """Load a scenario file, or a benchmark file as the scenario that it runs."""
    source = read_yaml(path)
    if SECTION in source.data:
        return load_benchmark(path, profile, overrides)
    if profile is not None:
        raise InputError(f"{path}: no profile {profile!r}: only a benchmark file has profiles")
    return load_source(prepare(source, overrides))


def load_benchmark(path: Path, profile: str | None = None, overrides: list[str] | None = None) -> Scenario:
    """Load a benchmark as a scenario with a sweep over its rows and seeds; InputError says what is wrong."""
    source = read_yaml(path)
    if SECTION not in source.data:
        raise InputError(f"{path}: a benchmark has a section `benchmark` with its `defenses`")
    own = [one for one in overrides or [] if one.partition("=")[0].strip().split(".")[0] == SECTION]
    others = [one for one in overrides or [] if one not in own]
    apply_overrides(source, own)
    config = read_section(source, SECTION, BenchmarkConfig)
    if profile is not None:
        if profile not in config.profiles:
            known = list(config.profiles)
            raise InputError(
                f"{path}: no profile {profile!r}{did_you_mean(profile, known)}; there are {', '.join(known)}"
            )
        source.data = merge(source.data, config.profiles[profile])
        apply_overrides(source, own)  # the command line has the last word
        config = read_section(source, SECTION, BenchmarkConfig)
    del source.data[SECTION]
    given = prepare(source, others)
    data = given.data.get("data")
    if isinstance(data, dict) and data.get("root") and config.with_root:
        given = prepare(YamlSource(merge(source.data, config.with_root), source.lines), others)
    if given.data.get("sweep"):
        raise InputError(f"{given.prefix(('sweep',))}a benchmark sweeps over its rows and seeds alone: remove `sweep`")
    rows = config.rows()
    for index, row in enumerate(rows):
        try:
            defense_point(row)
        except InputError as error:
            raise InputError(f"{given.prefix((SECTION, 'defenses', index))}{error}") from None
    first = validate(given).seed
    given.data["sweep"] = {"defenses": rows, "seed": [first + i for i in range(config.seeds)]}
    given.lines[PLACE] = given.where((SECTION, "defenses"))
    return load_source(given)
