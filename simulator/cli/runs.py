"""The commands on scenarios: check, and those that end in a verdict on a run: run, benchmark, report."""

from collections.abc import Callable

from simulator.cli.commands import BenchmarkCommand, CheckCommand, ReportCommand, RunCommand
from simulator.cli.finish import finish_benchmark, finish_run, finish_unwritten
from simulator.cli.output import CommandResult, out, say
from simulator.reports.benchmark_table import TABLE
from simulator.reports.gate import PLACES, parse_limits
from simulator.run.display import run_display
from simulator.run.estimate import describe_plan
from simulator.run.plan import make_plan
from simulator.run.run_folder import needs_run
from simulator.run_errors import CellsFailed, DiskError, NoResult, RowsWithoutResult
from simulator.rundir.run import Run
from simulator.scenario.benchmark import load_any, load_benchmark
from simulator.scenario.scenario import Scenario, load_scenario


def check(typed: CheckCommand) -> CommandResult:
    said = {}
    for line in describe_plan(make_plan(load_any(typed.file, typed.profile, typed.overrides))):
        out.print(line)  # the price comes some seconds after the rest
        name, text = line.split(":", 1)
        said[name] = " ".join(text.split())
    return CommandResult(said)


def run(typed: RunCommand) -> CommandResult:
    return _run(load_scenario(typed.file, typed.overrides), typed, finish_run)


def benchmark(typed: BenchmarkCommand) -> CommandResult:
    return _run(load_benchmark(typed.file, typed.profile, typed.overrides), typed, finish_benchmark)


def _run(scenario: Scenario, typed: RunCommand, finish: Callable[..., CommandResult]) -> CommandResult:
    """Run what there is to run, and say what came out. finish: shows a run, or compares the defenses of one."""
    plan = make_plan(scenario, typed.out_dir)
    cells = [cell.scenario for cell in plan.cells]
    views = {view.threat_model for scenario in cells for view in scenario.views}
    attacks = {attack.label for scenario in cells for attack in scenario.attacks}
    known = {*views, *attacks, *(scenario.defense for scenario in cells)}  # that a limit may name
    options = typed.show_all, parse_limits(typed.fail_above, known)
    if not needs_run(plan, typed.overwrite):
        say(f"{plan.run_dir} holds this run already, finished; --overwrite does it again")
        return finish(plan.run_dir, False, *options)
    from simulator.run.engine import simulate  # Flower and Ray: 1.3 s that a finished run does without

    try:
        simulate(plan, run_display(), typed.overwrite, typed.verbose)
    except DiskError as error:
        return finish_unwritten(plan.run_dir, error, *options)
    except CellsFailed as error:
        if Run(plan.run_dir).leakage.empty:
            raise
        result = finish(plan.run_dir, plan.scenario.output.figures, *options)  # of what is over
        return CommandResult(result.data, error)
    return finish(plan.run_dir, plan.scenario.output.figures, *options)


def report(typed: ReportCommand) -> CommandResult:
    leakage = Run(typed.run_dir).leakage
    known = {str(value) for name in PLACES for value in leakage[name].unique()}
    finish = finish_benchmark if (typed.run_dir / TABLE).exists() else finish_run
    result = finish(typed.run_dir, True, typed.show_all, parse_limits(typed.fail_above, known))
    told = isinstance(result.error, NoResult | RowsWithoutResult)  # by the run
    return CommandResult(result.data, None if told else result.error)
