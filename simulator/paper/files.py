"""The file of an experiment: its claims, and a scenario with profiles and with what each data set needs."""

from pathlib import Path
from typing import Any

from attacks.interface.errors import InputError, nearest
from simulator.paper.claims import ClaimRule
from simulator.scenario.scenario import apply_overrides, prepare
from simulator.scenario.sweep import axis_keys, axis_points
from simulator.scenario.yaml_source import Source, merge, parse_value, read_yaml

FOLDER = Path(__file__).parents[2] / "scenarios" / "paper"
THEORY = FOLDER.parent / "theory"  # of the experiments on the constancy of the kernel
EMBEDDED = "digits"


def file_of(name: str) -> Path:
    """Where an experiment's settings lie: under its name in scenarios/paper, or else in scenarios/theory."""
    path = FOLDER / f"{name}.yaml"
    return path if path.exists() else THEORY / path.name


def load_file(name: str, profile: str, overrides: list[str]) -> Source:
    """scenarios/paper/NAME.yaml, or that of scenarios/theory, with, each on top of the one before: its data set's
    settings, its profile's, --set.

    `datasets` maps names of data sets to settings, or to null where a file that extends another leaves one out. The
    first one is the default, the first one but digits stands for a data.root without a data.name. A key that the file
    sweeps may be set too: to one value or to a list of them.
    """
    source = read_yaml(file_of(name))
    data = {key: value for key, value in source.data.items() if key not in ("claims", "source")}
    profiles, datasets = data.pop("profiles", {}), data.pop("datasets", {})
    if profile not in profiles:
        raise InputError(f"{name}: no profile {profile!r}{nearest(profile, list(profiles))}: {', '.join(profiles)}")
    datasets = {name: settings for name, settings in datasets.items() if settings is not None}
    if datasets:
        chosen = choose_dataset(list(datasets), overrides)
        data = merge(data, merge({"data": {"name": chosen}}, datasets.get(chosen, {})))
    data = merge(data, profiles[profile] or {})
    sweep, rest = narrow_sweep(data.get("sweep") or {}, overrides)
    return prepare(Source(data | ({"sweep": sweep} if sweep else {}), source.lines), rest)


def load_claims(name: str) -> dict[str, ClaimRule]:
    """The file's section `claims` by key, in the order in which they are printed.

    A file that extends another adds its claims to that one's, replaces those of the same key, and leaves out those that
    it sets to null. The name of an experiment in place of a claim stands for that experiment's claim of the same key.
    `source`, a key of the file, is where in the paper they stand; a claim's own source may have more to say.
    """
    data = read_yaml(file_of(name)).data
    rules = {}
    for key, said in data["claims"].items():
        if said is not None:
            said = read_yaml(file_of(said)).data["claims"][key] if isinstance(said, str) else said
            rule = ClaimRule.model_validate(said)
            rules[key] = rule.model_copy(update={"source": rule.source.format(source=data["source"])})
    return rules


def choose_dataset(known: list[str], overrides: list[str]) -> str:
    """The data set that --set names, else, where it gives a data.root, the first of `known` that has one, else the
    first."""
    said = Source({})
    apply_overrides(said, [override for override in overrides if override.partition(".")[0].strip() == "data"])
    given: dict[str, Any] = said.data.get("data") or {}
    rooted = [name for name in known if name != EMBEDDED] if given.get("root") else []
    return given.get("name") or [*rooted, *known][0]


def narrow_sweep(sweep: dict[str, list[Any]], overrides: list[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """(the sweep with the values that --set gives for its keys, the other overrides).

    A key that moves together with another one keeps the points at which it has one of the values given.
    """
    rest, narrowed = [], dict(sweep)
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        axis = next((axis for axis in sweep if key in axis_keys(axis)), None)
        if axis is None or not equals:
            rest.append(override)
            continue
        value = parse_value(text)
        values = value if isinstance(value, list) else [value]
        if axis != key:
            points = axis_points(axis, narrowed[axis])
            values = [old for old, point in zip(narrowed[axis], points, strict=True) if point[key] in values]
            if not values:
                known = ", ".join(dict.fromkeys(str(point[key]) for point in points))
                raise InputError(f"--set {override}: {key} is swept as {axis!r}, with the values {known}")
        narrowed[axis] = values
    return narrowed, rest
