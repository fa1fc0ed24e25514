"""The commands about scenarios and benchmarks: run, benchmark, check, report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.output import (
    AllowCode,
    Answer,
    FailAbove,
    Overrides,
    Overwrite,
    Profile,
    RunDir,
    ScenarioFile,
    ShowAll,
    Verbose,
    command,
    draw,
    out,
    records,
    say,
    warn,
)
from simulator.errors import CellsFailed, DiskError, NoResult, RowsWithoutResult

if TYPE_CHECKING:
    from simulator.cli.finish import Shown
    from simulator.run.plan import RunPlan


@command
def run(
    file: ScenarioFile,
    out_dir: RunDir = None,
    overrides: Overrides = [],
    fail_above: FailAbove = [],
    show_all: ShowAll = False,
    overwrite: Overwrite = False,
    allow_code: AllowCode = False,
    verbose: Verbose = False,
) -> Answer:
    """Run a scenario: federate, attack every round, and say what leaks.

    Exit code 2: bad input; 1: the run had to stop; 3: no result at all; 4: above --fail-above; 5: some rows without.
    """
    from simulator.cli.finish import finish_run, finish_unwritten
    from simulator.run.display import run_display
    from simulator.run.folder import needs_run
    from simulator.run.plan import make_plan
    from simulator.scenario.scenario import load_scenario

    plan = make_plan(load_scenario(file, overrides), out_dir)
    shown = shown_of(plan, fail_above, show_all)
    if not needs_run(plan, overwrite):
        say(f"{plan.run_dir} holds this run already, finished; --overwrite does it again")
        return finish_run(plan.run_dir, figures=False, shown=shown)
    from simulator.run.engine import simulate

    try:
        simulate(plan, run_display(), overwrite, verbose)
    except DiskError as error:
        return finish_unwritten(plan.run_dir, error, plan.scenario.swept, shown)
    return finish_run(plan.run_dir, figures=plan.scenario.output.figures, shown=shown)


@command
def benchmark(
    file: ScenarioFile,
    out_dir: RunDir = None,
    profile: Profile = None,
    overrides: Overrides = [],
    fail_above: FailAbove = [],
    show_all: ShowAll = False,
    overwrite: Overwrite = False,
    allow_code: AllowCode = False,
    verbose: Verbose = False,
) -> Answer:
    """Compare defenses: each against every attack and threat model, over several seeds. Resumes where it stopped."""
    from simulator.cli.finish import finish_unwritten
    from simulator.run.display import run_display
    from simulator.run.folder import needs_run
    from simulator.run.plan import make_plan
    from simulator.scenario.benchmark import load_benchmark

    plan = make_plan(load_benchmark(file, profile, overrides), out_dir)
    shown = shown_of(plan, fail_above, show_all)
    if needs_run(plan, overwrite):
        from simulator.run.engine import simulate

        try:
            simulate(plan, run_display(), overwrite, verbose)
        except DiskError as error:
            return finish_unwritten(plan.run_dir, error, plan.scenario.swept, shown)
        except CellsFailed as error:  # the other cells are worth comparing
            return Answer(finish_benchmark(plan.run_dir, figures=False, shown=shown).data, error)
    return finish_benchmark(plan.run_dir, plan.scenario.output.figures, shown)


@command
def check(
    file: ScenarioFile, profile: Profile = None, overrides: Overrides = [], allow_code: AllowCode = False
) -> Answer:
    """Validate a scenario or a benchmark; print what would run and what it would cost."""
    from simulator.run.estimate import describe_plan
    from simulator.run.plan import make_plan
    from simulator.scenario.benchmark import load_any

    lines = describe_plan(make_plan(load_any(file, profile, overrides)))
    out.print(lines)
    said = dict(line.split(":", 1) for line in lines.splitlines())
    return Answer({name: " ".join(text.split()) for name, text in said.items()})


@command
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="the directory of a run or a benchmark")],
    fail_above: FailAbove = [],
    show_all: ShowAll = False,
    allow_code: AllowCode = False,
) -> Answer:
    """Say again what a run or a benchmark found, and draw its figures and its page anew."""
    from simulator.cli.finish import Shown, finish_run
    from simulator.reports.benchmark_table import TABLE
    from simulator.reports.gate import PLACES, parse_limits
    from simulator.rundir.run import Run

    leakage = Run(run_dir).leakage
    known = {str(value) for name in PLACES for value in leakage[name].unique()}
    finish = finish_benchmark if (run_dir / TABLE).exists() else finish_run
    answer = finish(run_dir, figures=True, shown=Shown(show_all, parse_limits(fail_above, known)))
    told = isinstance(answer.error, NoResult | RowsWithoutResult)  # by the run
    return Answer(answer.data, None if told else answer.error)


def shown_of(plan: "RunPlan", fail_above: list[str], show_all: bool) -> "Shown":
    """What is to be shown of a plan; InputError where a limit names what the plan does not have."""
    from simulator.cli.finish import Shown
    from simulator.reports.gate import parse_limits

    cells = [cell.scenario for cell in plan.cells]
    views = {view.threat_model for scenario in cells for view in scenario.views}
    attacks = {attack.label for scenario in cells for attack in scenario.attacks}
    known = {*views, *attacks, *(scenario.defense for scenario in cells)}
    return Shown(show_all, parse_limits(fail_above, known))


def finish_benchmark(run_dir: Path, figures: bool, shown: "Shown") -> Answer:
    """The verdict and the tables of a benchmark, which are written too."""
    from simulator.cli.finish import error_of, show_files, show_verdict
    from simulator.reports.benchmark_table import EQUAL, TABLE, write_benchmark, write_equal_utility
    from simulator.reports.tables import BENCHMARK_LEGEND, benchmark_view, equal_utility_view, untested
    from simulator.rundir.run import Run

    record = Run(run_dir)
    table = write_benchmark(record)
    equal = write_equal_utility(record, table)
    if figures:
        from simulator.reports.html_report import write_benchmark_report

        draw(lambda: write_benchmark_report(record, table, equal, warn))
    data: dict[str, Any] = {"run": str(run_dir), **show_verdict(record.leakage, shown)}
    out.print(benchmark_view(table, out.width), "", BENCHMARK_LEGEND, *untested(table))
    if len(equal):
        out.print(equal_utility_view(equal, out.width))
        say(f"equal utility: {run_dir / EQUAL}")
    data |= {"files": show_files(run_dir, TABLE), "rows": records(table), "equal_utility": records(equal)}
    return Answer(data, error_of(record.leakage, shown.limits))
