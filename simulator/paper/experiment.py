"""An experiment: a name, a file of settings and claims, functions that measure its data and compute the statistics of
its claims, and one that estimates the cost from a few steps, timed on this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import matplotlib.pyplot as plt
import pandas as pd

from attacks.interface.errors import InputError, did_you_mean
from clients.config import Section
from simulator.evaluation.attack_run import work_seconds
from simulator.paper.claims import Statistics
from simulator.run.display import Display, ShowProgress
from simulator.run.estimate import describe_plan
from simulator.run.plan import make_plan
from simulator.run.run_folder import needs_run
from simulator.run_errors import RunError
from simulator.rundir.run import Run
from simulator.rundir.strip import Strip, strip_of
from simulator.scenario.scenario import Cell, Scenario, load_source
from simulator.scenario.yaml_source import YamlSource, read_section

Settings = TypeVar("Settings", bound=Section)

FEWEST, MOST = 5, 320  # steps that are timed
LONGER = 1.5  # timed steps take this many times as long as one: else they are lost in the scatter of the set-up
SLOW = 10.0  # seconds of one step with its set-up: if it takes longer, only one more step is timed
LEAST = 0.1  # of those seconds, which one step counts at least: a smaller difference is scatter


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an experiment measured.

    data: the raw figures, written as data.csv; all that is said of the experiment, its claims and its figure, is read
        off them.
    sheet: the images of sheet.png, asked for with --sheet only.
    """

    data: pd.DataFrame
    sheet: Callable[[], Sequence[Strip]] | None = None


@dataclass(frozen=True)
class ExperimentRun:
    """One experiment, ready to be measured: its settings with profile, data set and --set applied, and where to work.

    out: exists; experiments may keep intermediate files below it.
    report: draws a progress bar.
    say: prints a line.
    """

    name: str
    profile: str
    source: YamlSource
    out: Path
    display: Display
    report: ShowProgress
    say: Callable[[str], None]
    verbose: bool = False

    @cached_property
    def scenario(self) -> Scenario:
        """The federation that the file describes; its section `settings` is for the experiment alone."""
        sections = {key: value for key, value in self.source.data.items() if key != "settings"}
        return load_source(YamlSource(sections, self.source.lines))

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells of the scenario's sweep."""
        return self.scenario.cells()

    @property
    def is_federation(self) -> bool:
        """Whether the file describes one, beside its settings."""
        return bool(set(self.source.data) - {"name", "settings"})

    @property
    def threads(self) -> int:
        """Torch threads of what is measured in this process, as many as an attack has. By default torch takes every
        core: figures would depend on their number, and threads that wait for a busy core spin, for ten times as long
        as they work."""
        return self.scenario.engine.threads if self.is_federation else 1

    def check(self, kind: type[Settings]) -> Settings:
        """Validate all that the file says, and return its section `settings`; InputError names the key."""
        settings = read_section(self.source, "settings", kind)
        if self.is_federation:
            _ = self.scenario
        return settings

    def sweep(self) -> Run:
        """Run the file's federation with its whole sweep, in the folder `run` below `out`.

        It is an ordinary run: cells that are done are kept, and `fedspill report` reads it. RunError where an attack
        failed, since a figure with holes in it decides nothing.
        """
        from simulator.run.engine import simulate  # Ray and more: 1 s, which `paper --list` does without

        plan = make_plan(self.scenario, self.out / "run")
        if needs_run(plan):
            if self.profile != "quick":
                self.say("\n".join(describe_plan(plan)))
            simulate(plan, self.display, verbose=self.verbose)
        record = Run(plan.run_dir)
        failed = record.leakage[record.leakage.status != "ok"]
        if len(failed):
            first = failed.iloc[0]
            raise RunError(f"{self.name}: {len(failed)} attacks {first['status']}, the first: {first['detail']}")
        short = record.leakage[record.leakage.detail.str.contains("raise data.public", na=False)]
        if len(short):
            self.say(f"warning: in {len(short)} rows {short.iloc[0]['detail']}")
        return record


def seconds_per_step(run: Callable[[int], object]) -> float:
    """Return an upper bound of the seconds that one step takes.

    run: sets up and does as many steps as it is given. The set-up is not counted if it can be told apart.
    """
    first = clocked(run, 1)
    if first > SLOW:
        return max(clocked(run, 2) - first, LEAST * first)
    one, steps = clocked(run, 1), FEWEST  # warm: the first time, libraries and allocators set themselves up
    while (more := clocked(run, 1 + steps)) < LONGER * one and steps < MOST:
        steps *= 4
    return (more - one) / steps if more >= LONGER * one else more / (1 + steps)


def clocked(do: Callable[..., object], *arguments: object) -> float:
    """Return the seconds that one call takes where nothing else runs on this machine."""
    start = work_seconds()
    do(*arguments)
    return work_seconds() - start


def num_private(cell: Cell) -> int:
    """Return how many images the one client of a cell trains on, 0 for no limit."""
    return cell.scenario.partition.images_of(0) or 0


SHEET_IMAGES = 20
STRIP_TITLE = "{cell}, {attack}: {recovered} of {num_private} recovered"


def sheet_of(record: Run) -> list[Strip]:
    """Return the best reconstructions of every attack at the smallest seed, as the paper's image sheets order them."""
    rows = record.leakage[(record.leakage.seed == record.leakage.seed.min()) & (record.leakage.num_reconstructed > 0)]
    return [strip_of(record, row, STRIP_TITLE.format(**row), most=SHEET_IMAGES) for _, row in rows.iterrows()]


Measure = Callable[[ExperimentRun, Any], Outcome]
"""Takes the run and the file's section `settings`, validated."""
Cost = Callable[[ExperimentRun, Any], float]
"""Seconds that the same would take on this machine, from a few steps of it measured now."""
Judge = Callable[[pd.DataFrame], Statistics]
Draw = Callable[[pd.DataFrame], plt.Figure]


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper.

    statistics: what the claims of the experiment's file speak of, by name, from data.csv.
    draw: makes figure.png of data.csv.
    settings: what its file's section `settings` may hold; default nothing.

    cost: asked for before a profile other than `quick` begins; None where `ExperimentRun.sweep` says it.
    """

    name: str
    title: str
    measure: Measure
    statistics: Judge
    draw: Draw
    settings: type[Section] = Section
    cost: Cost | None = None

    def by_seed(self, data: pd.DataFrame) -> dict[int, Statistics]:
        """Compute the statistics of each seed's rows alone; none if nothing is drawn by a seed."""
        seeds = data.seed.unique() if "seed" in data else ()
        return {int(seed): self.statistics(data[data.seed == seed]) for seed in seeds}


EXPERIMENTS: dict[str, Experiment] = {}


Read = TypeVar("Read", bound=Callable[..., Any])


def experiment(
    name: str,
    title: str,
    statistics: Judge,
    draw: Draw,
    settings: type[Section] = Section,
    cost: Cost | None = None,
    *,
    by: Callable[[Any], Measure] = lambda measure: measure,
) -> Callable[[Read], Read]:
    """Register what measures an experiment, of an `ExperimentRun` and its settings; one function may measure several.

    Each has a file, NAME.yaml in scenarios/paper or scenarios/theory: its claims, a scenario where it is a federation,
    and its `settings`.

    by: makes that of a function which takes something else.
    """

    def register(function: Read) -> Read:
        EXPERIMENTS[name] = Experiment(name, title, by(function), statistics, draw, settings, cost)
        return function

    return register


def each_cell(rows_of: Callable[[Cell, Any], Any], run: ExperimentRun, settings: Section) -> Outcome:
    """Measure each cell of the file's sweep without a run. rows_of: makes its rows, of the cell and the settings."""
    tables = []
    for done, cell in enumerate(run.cells):
        run.report(cell.name, done, len(run.cells))
        tables.append(pd.DataFrame(rows_of(cell, settings)))
    return Outcome(pd.concat(tables, ignore_index=True))


def one_sweep(read: Callable[[Run], pd.DataFrame], run: ExperimentRun, _: Section) -> Outcome:
    """Run the file's federation with its whole sweep. read: returns the data of that run."""
    record = run.sweep()
    return Outcome(read(record), partial(sheet_of, record))


cell_experiment = partial(experiment, by=lambda rows_of: partial(each_cell, rows_of))
sweep_experiment = partial(experiment, by=lambda read: partial(one_sweep, read))


def get_experiment(name: str) -> Experiment:
    """Return the registered experiment of this name. Raise InputError, with the nearest name, for another one."""
    if name not in EXPERIMENTS:
        raise InputError(f"unknown experiment {name!r}{did_you_mean(name, list(EXPERIMENTS))}; fedspill paper --list")
    return EXPERIMENTS[name]
