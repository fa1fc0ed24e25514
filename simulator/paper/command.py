"""`fedspill paper FIGURE`: measure one experiment, and write its figures, its claims and its pictures."""

import contextlib
import dataclasses
import json
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from attacks import InputError
from simulator.paper.base import EXPERIMENTS, Claim, Job, Result, get_experiment
from simulator.paper.files import identity, load_file
from simulator.paper.pictures import draw_sheet
from simulator.results.storage import write_atomically
from simulator.run.display import Bars
from simulator.run.estimate import clock
from simulator.scenario.yaml_source import Source

IDENTITY = "experiment.json"


def run_experiment(
    name: str, profile: str, overrides: list[str], out: Path, sheet: bool, console: Console, verbose: bool = False
) -> Result:
    """Measure and write; everything that can be wrong with the input is found before anything is written."""
    experiment = get_experiment(name)
    source = load_file(name, profile, overrides)

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    with contextlib.closing(StepBar()) as bar:
        job = Job(name, profile, source, out.resolve(), Bars(Console(stderr=True)), bar.report, say, verbose)
        job.check(experiment.settings)
        claim_folder(job)
        if profile != "quick" and experiment.cost is not None:
            bar.report("timing a few steps", 0, 1)
            say(f"cost:    about {clock(experiment.cost(job))} on this machine, at most")
        result = experiment.measure(job)
    write(result, out, sheet, measured_on(source))
    console.print(claims_table(result))
    console.print(f"measured{measured_on(source)}, profile {profile}", highlight=False, soft_wrap=True)
    return result


class StepBar:
    """A progress bar that appears when it is first told of something: a run draws bars of its own."""

    def __init__(self) -> None:
        self.progress = Progress(console=Console(stderr=True), transient=True)
        self.task: TaskID | None = None

    def report(self, what: str, done: int, total: int) -> None:
        if self.task is None:
            self.progress.start()
            self.task = self.progress.add_task(what)
        self.progress.update(self.task, completed=done, total=total, description=what)

    def close(self) -> None:
        self.progress.stop()


def claim_folder(job: Job) -> None:
    """Make DIR, or find in it the same experiment under the same settings; InputError where something else is there."""
    own, path = identity(job.name, job.profile, job.source), job.out / IDENTITY
    if job.out.is_file():
        raise InputError(f"{str(job.out)!r} is a file: choose another --out")
    if job.out.is_dir() and any(file != path for file in job.out.iterdir()):
        if not path.exists():
            raise InputError(f"{str(job.out)!r} holds something that is no experiment: choose another --out")
        found = json.loads(path.read_text())
        if found != own:
            other = f"{found.get('experiment')} ({found.get('profile')})"
            raise InputError(f"{str(job.out)!r} holds {other} under other settings: choose another --out")
    job.out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(own, indent=1) + "\n")


def write(result: Result, out: Path, sheet: bool, where: str) -> None:
    """data.csv, claims.json (each says `where` it was measured), figure.png and, where asked for, sheet.png."""
    write_atomically(out / "data.csv", result.data.to_csv(index=False))
    claims = [
        dataclasses.asdict(claim) | {"measured": claim.measured + where, "holds": verdict(claim)}
        for claim in result.claims
    ]
    write_atomically(out / "claims.json", json.dumps(claims, indent=1, ensure_ascii=False) + "\n")
    result.draw(out / "figure.png")
    if sheet and result.sheet is not None:
        draw_sheet(result.sheet(), out / "sheet.png")


def measured_on(source: Source) -> str:
    """ " (on mnist)"; empty for an experiment without images."""
    if "data" not in source.data:
        return ""
    name, root = source.data["data"].get("name", "digits"), source.data["data"].get("root")
    return f" (on {name}" + (")" if root else ", embedded: no data.root was given)")


def verdict(claim: Claim) -> bool | None:
    """As a plain bool, whatever numpy or pandas made of it."""
    return None if claim.holds is None else bool(claim.holds)


def claims_table(result: Result) -> Table:
    table = Table(title="Claims of the paper", title_justify="left", show_lines=True)
    for column, ratio in (("claim", 3), ("the paper", 3), ("measured", 4)):
        table.add_column(column, ratio=ratio)
    table.add_column("holds here")
    for claim in result.claims:
        holds = {True: "[green]yes[/]", False: "[red]no[/]", None: "not measured"}[verdict(claim)]
        table.add_row(f"{claim.claim}\n[dim]{claim.source}[/]", claim.paper, claim.measured, holds)
    return table


def listing() -> Table:
    """Every experiment by name, in the order of the paper."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name in sorted(EXPERIMENTS, key=natural):
        table.add_row(name, EXPERIMENTS[name].title)
    return table


def natural(name: str) -> tuple[bool, str, int]:
    """figure2 before figure10, figures before all others."""
    digits = "".join(filter(str.isdigit, name))
    return (not name.startswith("figure"), name.rstrip("0123456789"), int(digits or 0))
