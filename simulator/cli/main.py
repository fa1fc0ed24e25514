"""The command line. A command's module is imported when the command is called, so that `--help` answers at once."""

import gc
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from importlib import import_module, metadata
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from attacks.interface.errors import InputError
from simulator.cli import commands
from simulator.cli.output import CommandResult, in_json
from simulator.run_errors import RunError, no_path, refused_file, unexpected
from simulator.terminal import guard_warnings, outlets, print_error

# Objects between two collections of garbage: 0.3 of 3.1 processor seconds less for the imports of `run`. A run of six
# rounds takes no more memory by it (560 MB either way): it collects after each.
RARE = 50_000
STACK = "FEDSPILL_STACK"  # set in the environment, an error that nobody foresaw is shown as Python does
COMMANDS: dict[str, tuple[type, str]] = {  # its options, and the function that gets them, as module.function
    "run": (commands.RunCommand, "runs.run"),
    "benchmark": (commands.BenchmarkCommand, "runs.benchmark"),
    "check": (commands.CheckCommand, "runs.check"),
    "report": (commands.ReportCommand, "runs.report"),
    "audit": (commands.AuditCommand, "audit.audit"),
    "attack": (commands.AttackCommand, "update.attack"),
    "member": (commands.MemberCommand, "update.member"),
    "diagnose": (commands.DiagnoseCommand, "update.diagnose"),
    "distill": (commands.DistillCommand, "distill.distill"),
    "paper": (commands.PaperCommand, "paper.paper"),
    "init": (commands.InitCommand, "scenario_files.init"),
    "schema": (commands.SchemaCommand, "scenario_files.schema"),
    "list": (commands.ListCommand, "names.list_names"),
}
AsJson = Annotated[
    bool, typer.Option("--json", help="print one JSON object and nothing else; on a terminal, progress on stderr")
]

# click suggests commands, too
cli = typer.Typer(name="fedspill", no_args_is_help=True, pretty_exceptions_enable=False, suggest_commands=False)


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
    """Federated-learning attack simulator: what does my federation leak?

    \b
    fedspill run scenarios/quickstart.yaml --out runs/demo
    fedspill audit RECORDING --model task.py:Net --shape 3,32,32
    fedspill init mine.yaml
    """


def command(typed: type, place: str) -> Callable[..., None]:
    """Return a function for Typer, whose parameters are the fields of the dataclass `typed` and `--json`.

    Called, it imports the function at `place`, and calls it with what was typed.
    """
    own = vars(typed).get("__annotations__", {})
    shown = sorted(fields(typed), key=lambda option: option.name not in own)  # before those of its base
    parameters = [
        *(Parameter(one.name, Parameter.KEYWORD_ONLY, default=_default(one), annotation=one.type) for one in shown),
        Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson),
    ]

    def call(as_json: bool, **given: Any) -> None:
        def work() -> CommandResult:
            module, _, name = place.partition(".")
            result: CommandResult = getattr(import_module(f"simulator.cli.{module}"), name)(typed(**given))
            return result

        try:
            result = in_json(work) if as_json else work()
        except SystemExit as error:  # no code of ours ends the program from inside a command
            raise RunError(f"code that was allowed to run called sys.exit({error.code!r})") from None
        if result.error is not None:
            raise result.error

    call.__doc__ = typed.__doc__
    vars(call)["__signature__"] = Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _default(option: Field[Any]) -> Any:
    if option.default_factory is not MISSING:
        return option.default_factory()
    return Parameter.empty if option.default is MISSING else option.default


for name, (typed, place) in COMMANDS.items():
    cli.command(name)(command(typed, place))


def main() -> None:
    """Entry point. Exit codes, each with one line on stderr: 2 for bad input, 1 for a run that had to stop, an
    unforeseen error or a stdout that did not take everything, 3 for no result at all, 4 above --fail-above, 5 for some
    rows without a result. A reader of a pipe that leaves early changes nothing."""
    gc.set_threshold(RARE)
    guard_warnings()
    try:
        with outlets() as stdout:
            code = _exit_code()
            stdout.flush()
            if stdout.failed is not None and stdout.is_lost:
                print_error(f"stdout cannot be written ({stdout.failed.strerror}): what was to stand there is lost")
                code = code or 1
    finally:
        gc.freeze()  # the collection at the end of the process takes half a second after PyTorch's import
    sys.exit(code)


def _exit_code() -> int | str | None:
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
