"""The command line. Heavy imports happen inside the commands, so that `fedspill --help` answers at once."""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attacks.interface.errors import InputError
from simulator.cli.audit import audit
from simulator.cli.update import attack, diagnose, member, out
from simulator.errors import CellsFailed, NoResult, RunError

cli = typer.Typer(
    name="fedspill",
    help="Federated-learning attack simulator: what does my federation leak?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SHOWN_REMARKS = 6  # on the screen; the page has all

Overrides = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a key, e.g. model.width=1024")
]
ScenarioFile = Annotated[Path, typer.Argument(metavar="FILE", help="a scenario, e.g. scenarios/quickstart.yaml")]
RunDir = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="the run directory itself")]
Verbose = Annotated[bool, typer.Option("--verbose", help="show what Flower and Ray say")]


@cli.command()
def run(
    file: ScenarioFile,
    out_dir: RunDir = None,
    overrides: Overrides = [],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="do a finished run again")] = False,
    verbose: Verbose = False,
) -> None:
    """Run a scenario: federate, attack every round, and print the leakage table. Exit code 3 is no result at all."""
    from simulator.run.folder import needs_run
    from simulator.run.plan import make_plan
    from simulator.scenario.scenario import load_scenario

    plan = make_plan(load_scenario(file, overrides), out_dir)
    if not needs_run(plan, overwrite):
        out.print(f"{plan.run_dir} holds this run already, finished; --overwrite does it again")
        show_run(plan.run_dir)
        require_result(plan.run_dir)
        return
    from simulator.run.display import Bars
    from simulator.run.engine import simulate

    simulate(plan, Bars(Console(stderr=True)), overwrite, verbose)
    finish_run(plan.run_dir, figures=plan.scenario.output.figures)
    require_result(plan.run_dir)


@cli.command()
def benchmark(
    file: ScenarioFile,
    out_dir: RunDir = None,
    profile: Annotated[str | None, typer.Option(help="of the file's benchmark.profiles, e.g. quick")] = None,
    overrides: Overrides = [],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="do a finished benchmark again")] = False,
    verbose: Verbose = False,
) -> None:
    """Compare defenses: each against every attack and threat model, over several seeds. Resumes where it stopped."""
    from simulator.reports.benchmark import load_benchmark
    from simulator.reports.benchmark_table import TABLE, write_benchmark
    from simulator.reports.equal_utility import EQUAL, write_equal_utility
    from simulator.reports.tables import BENCHMARK_LEGEND, benchmark_view, equal_utility_view
    from simulator.results.run import Run
    from simulator.run.folder import needs_run
    from simulator.run.plan import make_plan

    plan = make_plan(load_benchmark(file, profile, overrides), out_dir)
    if needs_run(plan, overwrite):
        from simulator.run.display import Bars
        from simulator.run.engine import simulate

        try:
            simulate(plan, Bars(Console(stderr=True)), overwrite, verbose)
        except CellsFailed:  # the other cells are worth comparing
            write_equal_utility(record := Run(plan.run_dir), write_benchmark(record))
            raise
    record = Run(plan.run_dir)
    table = write_benchmark(record)
    equal = write_equal_utility(record, table)
    if plan.scenario.output.figures:
        from simulator.reports.benchmark_figures import draw_benchmark

        draw(lambda: draw_benchmark(record, table))
    out.print(benchmark_view(table))
    out.print(BENCHMARK_LEGEND)
    if len(equal):
        out.print(equal_utility_view(equal))
        out.print(f"equal utility: {plan.run_dir / EQUAL}", soft_wrap=True)
    out.print(f"figures: {plan.run_dir / 'figures'}", soft_wrap=True)
    out.print(f"table:   {plan.run_dir / TABLE}", soft_wrap=True)
    require_result(plan.run_dir)


@cli.command()
def check(
    file: ScenarioFile,
    profile: Annotated[str | None, typer.Option(help="of a benchmark file's benchmark.profiles, e.g. quick")] = None,
    overrides: Overrides = [],
) -> None:
    """Validate a scenario or a benchmark; print what would run and what it would cost."""
    from simulator.reports.benchmark import load_any
    from simulator.run.estimate import describe_plan
    from simulator.run.plan import make_plan

    out.print(describe_plan(make_plan(load_any(file, profile, overrides))))


for command in (member, diagnose):
    cli.command()(command)


def with_report(command: Callable[..., Path | None]) -> Callable[..., None]:
    """A command that ends with the page and the table of the run directory that it returns, where it made one."""

    @wraps(command)
    def then_report(**given: Any) -> None:
        if (run_dir := command(**given)) is not None:
            finish_run(run_dir, figures=True)
            require_result(run_dir)

    return then_report


for making in (attack, audit):
    cli.command()(with_report(making))


@cli.command()
def distill(
    method: Annotated[str, typer.Option(help="kip, rkip or rkip_finite")],
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for distill.json, distilled.npz and .png")],
    overrides: Overrides = [],
    train: Annotated[int, typer.Option(help="images to distill")] = 500,
    size: Annotated[int, typer.Option(help="images to distill them to")] = 20,
    iterations: Annotated[int | None, typer.Option(help="default 50000, rkip_finite 2000")] = None,
    kernel: Annotated[str, typer.Option(help="of KIP and RKIP: limit, authors or width_matched")] = "limit",
    standard_steps: Annotated[int, typer.Option(min=1, help="limit of standard training, for each set")] = 2_000,
    seed: Annotated[int, typer.Option(help="of data, networks and distillation")] = 0,
) -> None:
    """Distill images to a few synthetic ones; measure them on infinitely wide, standard and linearized networks."""
    from clients.distillation import DistillOptions
    from simulator.results.storage import check_out
    from simulator.run.display import step_bar
    from simulator.tools.distillation import Owner, accuracy_lines, distill_scenario, run_distillation

    check_out(out_dir)
    owner = Owner.of(distill_scenario(overrides, train, seed))
    options = DistillOptions(method=method, iterations=iterations, kernel=owner.kernel_named(kernel))
    with step_bar() as report:
        facts = run_distillation(owner, options, size, out_dir, report, max_steps=standard_steps)
    for line in accuracy_lines(facts):
        out.print(line, soft_wrap=True)
    out.print(f"written: {out_dir / 'distill.json'}", soft_wrap=True)


@cli.command()
def paper(
    figure: Annotated[str | None, typer.Argument(metavar="FIGURE", help="e.g. figure3; --list names them")] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="for data.csv, claims.json, …")] = None,
    profile: Annotated[str, typer.Option(help="quick, or full: the paper's size")] = "quick",
    overrides: Overrides = [],
    sheet: Annotated[bool, typer.Option("--sheet", help="draw the reconstructions too, in sheet.png")] = False,
    names: Annotated[bool, typer.Option("--list", help="list the experiments")] = False,
    verbose: Verbose = False,
) -> None:
    """Rerun an experiment of the paper, and judge its claims by what comes out. Resumes where it stopped."""
    from simulator.paper.command import listing, run_experiment

    if names:
        out.print(listing())
        return
    if figure is None or out_dir is None:
        raise InputError("fedspill paper FIGURE --out DIR measures an experiment, fedspill paper --list names them")
    run_experiment(figure, profile, overrides, out_dir, out, sheet=sheet, verbose=verbose)
    written = ", ".join(["data.csv", "claims.json", "figure.png"] + ["sheet.png"] * sheet)
    out.print(f"written: {out_dir}: {written}", soft_wrap=True)


@cli.command()
def report(run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")]) -> None:
    """Print the table of a run and draw its figures again."""
    finish_run(run_dir, figures=True)


@cli.command("list")
def list_names() -> None:
    """List the attacks, defenses, data sets, models and strategies that a scenario can name."""
    from attacks import ATTACKS
    from clients.data import SOURCES
    from clients.defenses import DEFENSES
    from clients.models import MODELS
    from simulator.run.strategies import known_strategies

    out.print("attacks:    " + ", ".join(sorted(ATTACKS)))
    out.print("defenses:   " + ", ".join(sorted(DEFENSES)) + ", package.module:mod of Flower")
    out.print("data:       " + ", ".join(SOURCES) + ", OWNER/NAME of the Hugging Face hub")
    out.print("models:     " + ", ".join(MODELS) + ", package.module:factory, FILE.py:factory")
    out.print("strategies: " + ", ".join(known_strategies()))


def finish_run(run_dir: Path, figures: bool) -> None:
    """Draw, write the page and print, in this order: the table is the last thing on the screen."""
    if figures:
        from simulator.reports.html_report import write_report

        draw(lambda: write_report(run_dir, say))
    show_run(run_dir)


def draw(figures: Callable[[], object]) -> None:
    """Figures that cannot be drawn cost a line, not the table."""
    try:
        with out.status("drawing figures …"):
            figures()
    except Exception as error:
        say(f"figures could not be drawn: {type(error).__name__}: {' '.join(str(error).split())}")


def say(line: str) -> None:
    """As it is: brackets are no markup."""
    out.print(line, soft_wrap=True, markup=False)


def require_result(run_dir: Path) -> None:
    """Raise NoResult where every attack failed, was skipped or ran out of time."""
    from simulator.results.run import Run

    status = Run(run_dir).leakage.status
    if len(status) and not (status == "ok").any():
        counts = ", ".join(f"{count} {name}" for name, count in status.value_counts().items())
        raise NoResult(f"no attack gave a result ({counts}): nothing is known of what leaks")


def show_run(run_dir: Path) -> None:
    """The table, what its columns mean, and where everything lies, relative to here where it is below."""
    here = Path.cwd()
    run_dir = run_dir.relative_to(here) if run_dir.is_absolute() and run_dir.is_relative_to(here) else run_dir
    from simulator.reports.tables import leakage_table, legend, remarks
    from simulator.results.run import Run

    record = Run(run_dir)
    table = leakage_table(record.leakage, record.swept, out.width)
    out.print(table)
    out.print(legend(str(column.header) for column in table.columns))
    for remark in remarks(record.leakage, SHOWN_REMARKS):
        out.print(remark, markup=False)
    figures = sorted((run_dir / "figures").glob("*.png"))
    if figures:
        out.print("figures: " + ", ".join(str(path) for path in figures), soft_wrap=True)
        out.print(f"page:    {run_dir / 'report.html'}", soft_wrap=True)
    out.print(f"table:   {run_dir / 'leakage.csv'}", soft_wrap=True)


def main() -> None:
    """Entry point: bad input is one line and exit code 2, a run that had to stop 1, one without any result 3."""
    try:
        cli()
    except (InputError, RunError) as error:
        print(f"fedspill: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else error.exit_code)
