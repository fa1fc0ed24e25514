"""The command line. Heavy imports happen inside the commands, so that `fedleak --help` answers at once."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from attacks.errors import InputError
from simulator.errors import RunError

cli = typer.Typer(
    name="fedleak",
    help="Federated-learning attack simulator: what does my federation leak?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console()

Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a key, e.g. model.width=1024")]
ScenarioFile = Annotated[Path, typer.Argument(metavar="FILE", help="a scenario, e.g. scenarios/quickstart.yaml")]


@cli.command()
def run(
    file: ScenarioFile,
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="the run directory itself")] = None,
    overrides: Overrides = [],  # noqa: B006
    overwrite: Annotated[bool, typer.Option("--overwrite", help="do a finished run again")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="show what Flower and Ray say")] = False,
) -> None:
    """Run a scenario: federate, attack every round, and print the leakage table."""
    from simulator.plan import make_plan, prepare_directory
    from simulator.scenario import load_scenario

    plan = make_plan(load_scenario(file, overrides), out_dir)
    if not prepare_directory(plan, overwrite):
        out.print(f"{plan.run_dir} holds this run already, finished; --overwrite does it again", highlight=False)
        show_run(plan.run_dir)
        return
    from simulator.display import Bars
    from simulator.engine import simulate

    simulate(plan, Bars(out), verbose)
    finish_run(plan.run_dir, figures=plan.scenario.output.figures)


@cli.command()
def check(file: ScenarioFile, overrides: Overrides = []) -> None:  # noqa: B006
    """Validate a scenario; print what would run and what it would cost."""
    from simulator.estimate import describe_plan
    from simulator.plan import make_plan
    from simulator.scenario import load_scenario

    out.print(describe_plan(make_plan(load_scenario(file, overrides))), highlight=False)


@cli.command()
def report(run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")]) -> None:
    """Print the table of a run and draw its figures again."""
    finish_run(run_dir, figures=True)


@cli.command("list")
def list_names() -> None:
    """List the attacks, data sets, models and strategies that a scenario can name."""
    from attacks import ATTACKS
    from clients.data import SOURCES
    from clients.models import MODELS
    from simulator.strategies import known_strategies

    out.print("attacks:    " + ", ".join(sorted(ATTACKS)), highlight=False)
    out.print("data:       " + ", ".join(SOURCES) + ", OWNER/NAME of the Hugging Face hub", highlight=False)
    out.print("models:     " + ", ".join(MODELS) + ", package.module:factory, FILE.py:factory", highlight=False)
    out.print("strategies: " + ", ".join(known_strategies()), highlight=False)


def finish_run(run_dir: Path, figures: bool) -> None:
    """Draw, write the page and print, in this order: the table is the last thing on the screen."""
    from simulator.record import Record

    record = Record(run_dir)
    if figures:
        from simulator.figures import draw_figures
        from simulator.page import write_page

        with out.status("drawing figures …"):
            write_page(record, draw_figures(record))
    show_run(run_dir)


def show_run(run_dir: Path) -> None:
    from simulator.record import Record
    from simulator.tables import LEGEND, leakage_table

    record = Record(run_dir)
    out.print(leakage_table(record.leakage, list(record.scenario.sweep)))
    out.print(LEGEND, highlight=False)
    figures = sorted((run_dir / "figures").glob("*.png"))
    if figures:
        out.print("figures: " + ", ".join(str(path) for path in figures), highlight=False, soft_wrap=True)
        out.print(f"page:    {run_dir / 'report.html'}", highlight=False, soft_wrap=True)
    out.print(f"table:   {run_dir / 'leakage.csv'}", highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point: bad input is one line and exit code 2, a run that had to stop is one line and exit code 1."""
    try:
        cli()
    except InputError as error:
        print(f"fedleak: {error}", file=sys.stderr)
        sys.exit(2)
    except RunError as error:
        print(f"fedleak: {error}", file=sys.stderr)
        sys.exit(1)
