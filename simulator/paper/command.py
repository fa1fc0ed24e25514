"""The file of an experiment: a scenario with profiles and with what each data set needs.

`fedspill paper FIGURE`: measure one experiment, and write its figures, its claims and its pictures.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.table import Table
from rich.text import Text

from attacks.interface.errors import InputError, did_you_mean
from simulator.evaluation.attack_run import clock
from simulator.paper.claims import Claim, file_of
from simulator.paper.experiment import ExperimentRun, get_experiment
from simulator.paper.records import DATA, MADE, Made, decide, draw_figure, write_claims
from simulator.reports.drawing import draw_strips
from simulator.results.disk import write_atomically
from simulator.run.display import run_display, step_bar
from simulator.run.estimate import COST, describe_plan
from simulator.run.plan import make_plan
from simulator.run.run_folder import is_free, surroundings
from simulator.scenario.scenario import apply_overrides, prepare
from simulator.scenario.sweep import axis_keys, axis_points
from simulator.scenario.yaml_source import YamlSource, merge, parse_value, read_yaml
from simulator.terminal import Terminal

EMBEDDED = "digits"


def load_file(name: str, profile: str, overrides: list[str]) -> YamlSource:
    """Read the file of an experiment, and put on top of it, one after the other, the settings of its data set, those of
    its profile, and --set.

    `datasets` maps names of data sets to settings, or to null where a file that extends another leaves one out. The
    first one is the default; the first one but digits is chosen if --set gives data.root without data.name. --set may
    give a swept key one value or a list of them.
    """
    source = read_yaml(file_of(name))
    data = {key: value for key, value in source.data.items() if key not in ("claims", "source")}
    profiles, datasets = data.pop("profiles", {}), data.pop("datasets", {})
    if profile not in profiles:
        raise InputError(
            f"{name}: no profile {profile!r}{did_you_mean(profile, list(profiles))}: {', '.join(profiles)}"
        )
    datasets = {name: settings for name, settings in datasets.items() if settings is not None}
    if datasets:
        chosen = choose_dataset(list(datasets), overrides)
        data = merge(data, merge({"data": {"name": chosen}}, datasets.get(chosen, {})))
    data = merge(data, profiles[profile] or {})
    sweep, rest = narrow_sweep(data.get("sweep") or {}, overrides)
    return prepare(YamlSource(data | ({"sweep": sweep} if sweep else {}), source.lines), rest)


def choose_dataset(known: list[str], overrides: list[str]) -> str:
    """Return the data set that --set names; if it names none but gives a data.root, the first of `known` that has one;
    else the first."""
    said = YamlSource({})
    apply_overrides(said, [override for override in overrides if override.partition(".")[0].strip() == "data"])
    given: dict[str, Any] = said.data.get("data") or {}
    rooted = [name for name in known if name != EMBEDDED] if given.get("root") else []
    return given.get("name") or [*rooted, *known][0]


def narrow_sweep(sweep: dict[str, list[Any]], overrides: list[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return (the sweep with the values that --set gives for its keys, the other overrides).

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


def run_experiment(
    name: str,
    profile: str,
    overrides: list[str],
    out: Path,
    console: Terminal,
    *,
    sheet: bool = False,
    verbose: bool = False,
) -> list[Claim]:
    """Measure, judge and write; everything that can be wrong with the input is found before anything is written."""
    experiment = get_experiment(name)
    source = load_file(name, profile, overrides)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    with step_bar() as report:
        run = ExperimentRun(name, profile, source, out.resolve(), run_display(), report, say, verbose)
        settings = run.check(experiment.settings)
        torch.set_num_threads(run.threads)
        made = claim_folder(run, overrides)
        if profile != "quick" and experiment.cost is not None:
            report("timing a few steps", 0, 1)
            say(f"cost:    about {clock(experiment.cost(run, settings))} on this machine, idle, at most")
        outcome = experiment.measure(run, settings)
    write_atomically(out / DATA, outcome.data.to_csv(index=False))
    claims = decide(out)
    write_claims(out, claims)
    draw_figure(out, 150)
    if sheet and outcome.sheet is not None and (strips := outcome.sheet()):
        draw_strips(strips, out / "sheet.png")
    console.print(claims_table(claims))
    say(f"measured{' on ' + made.data if made.data else ''}, profile {profile}")
    return claims


def prices(name: str, overrides: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (profile, its price) for the profiles of an experiment, each measured by a few steps on this machine."""
    experiment = get_experiment(name)
    for profile in read_yaml(file_of(name)).data["profiles"]:
        with step_bar() as report, TemporaryDirectory() as folder:
            report(f"timing a few steps of {profile}", 0, 1)
            source = load_file(name, profile, overrides)
            run = ExperimentRun(name, profile, source, Path(folder), run_display(), report, say=lambda line: None)
            settings = run.check(experiment.settings)
            torch.set_num_threads(run.threads)
            if experiment.cost is not None:
                price = f"about {clock(experiment.cost(run, settings))} on this machine, idle, at most"
            else:
                lines = describe_plan(make_plan(run.scenario, run.out))
                price = next(line.removeprefix(COST).strip() for line in lines if line.startswith(COST))
        yield profile, price


def claim_folder(run: ExperimentRun, overrides: Sequence[str] = ()) -> Made:
    """Make DIR, or find in it the same experiment under the same settings; InputError where something else is there."""
    digest = sha256(json.dumps(run.source.data, sort_keys=True, default=str).encode()).hexdigest()[:10]
    made = Made(run.name, run.profile, digest, command_of(run, overrides), dataset_of(run.source), surroundings())
    measured = not run.out.is_dir() or any(file.name != MADE for file in run.out.iterdir())
    if measured:
        is_free(run.out, MADE, digest, "experiment", "experiment, or this one under other settings")
    run.out.mkdir(parents=True, exist_ok=True)
    made.write(run.out)
    return made


def command_of(run: ExperimentRun, overrides: Sequence[str]) -> str:
    """Return the command that repeats the experiment; for the folder of a data set it has its name in capitals."""
    words = ["fedspill", "paper", run.name, *(["--profile", run.profile] if run.profile != "quick" else [])]
    for override in overrides:
        key, _, value = override.partition("=")
        root = key.strip() == "data.root"
        words += ["--set", f"data.root={run.source.data['data']['name'].upper()}" if root else f"{key}={value}"]
    return shlex.join(words)


def dataset_of(source: YamlSource) -> str:
    """Return the name of the data set, as "mnist"; "" for an experiment without images."""
    if "data" not in source.data:
        return ""
    name = str(source.data["data"].get("name", EMBEDDED))
    return name if source.data["data"].get("root") else f"{name}, embedded: no data.root was given"


def claims_table(claims: list[Claim]) -> Table:
    """Make the table of claims for the terminal, each beside what was measured."""
    table = Table(title="Claims of the paper", title_justify="left", show_lines=True)
    for column, ratio in (("claim", 3), ("the paper", 3), ("measured", 4), ("holds here", 2)):
        table.add_column(column, ratio=ratio, overflow="fold")
    for claim in claims:
        colour = {True: "green", False: "red", None: "default"}[claim.holds]
        said = Text.assemble(claim.claim, "\n", (claim.source, "dim"))
        table.add_row(said, claim.paper, claim.measured, Text(claim.verdict, colour))
    return table
