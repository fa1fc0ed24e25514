"""The command line. Heavy imports happen inside the commands, so that `fedspill --help` answers at once."""

import os
import sys
from importlib import metadata
from typing import Annotated

import typer

from attacks.interface.errors import InputError
from simulator import gc_tuning
from simulator.cli.audit import audit
from simulator.cli.experiments import distill, paper
from simulator.cli.names import init, list_names, schema
from simulator.cli.runs import benchmark, check, report, run
from simulator.cli.update import attack, diagnose, member
from simulator.errors import RunError, no_path, refused_file, unexpected
from simulator.terminal import guard_warnings, outlets, print_error

STACK = "FEDSPILL_STACK"  # set in the environment, an error that nobody foresaw is shown as Python does

cli = typer.Typer(
    name="fedspill",
    help="Federated-learning attack simulator: what does my federation leak?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"fedspill {metadata.version('fedspill')}")
        raise typer.Exit


@cli.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Federated-learning attack simulator: what does my federation leak?"""


for command in (run, benchmark, check, report, audit, attack, member, diagnose, distill, paper, init, schema):
    cli.command()(command)
cli.command("list")(list_names)


def main() -> None:
    """Entry point: bad input is one line and exit code 2, a run that had to stop 1, one without any result 3, one above
    --fail-above 4, one with some rows without a result 5. So is an error that nobody foresaw, with 1, and a stdout that
    did not take all of it; a reader that leaves early changes nothing."""
    gc_tuning.look_rarely()
    guard_warnings()
    try:
        with outlets() as stdout:
            code = _exit_code()
            stdout.flush()
            if stdout.is_lost:
                print_error(f"stdout cannot be written ({stdout.reason}): what was to stand there is lost")
                code = code or 1
    finally:
        gc_tuning.leave_it()
    sys.exit(code)


def _exit_code() -> int | str | None:
    """Do what the command line says."""
    try:
        cli()
    except SystemExit as end:
        return end.code
    except (InputError, RunError) as error:
        print_error(str(error))
        return 2 if isinstance(error, InputError) else error.exit_code
    except Exception as error:
        if os.environ.get(STACK):
            raise
        wrong = no_path(error)
        print_error(wrong or refused_file(error) or unexpected(error))
        return 2 if wrong else 1
    return 0
