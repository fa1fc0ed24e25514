"""Options that several commands have.

What commands share: what they print, and `--json`.

A command returns an Answer. People read what it prints on the way. With `--json` stdout has one JSON object, the
answer's data; what people would read goes to stderr where that is a terminal, and else nowhere: a program that reads
both streams as one gets JSON.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from attacks.interface.code_trust import allow_code
from attacks.interface.errors import InputError
from simulator.errors import RunError, no_path, refused_file, said_by
from simulator.terminal import Terminal, print_error
from simulator.terminal import print_json as print_data


def _allow(wanted: bool) -> bool:
    if wanted:
        allow_code()
    return wanted


Overrides = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a key, e.g. model.width=1024")
]
ScenarioFile = Annotated[Path, typer.Argument(metavar="FILE", help="a scenario, e.g. scenarios/quickstart.yaml")]
RunDir = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="the run directory itself")]
Verbose = Annotated[bool, typer.Option("--verbose", help="show what Flower and Ray say")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="do a finished run again")]
Profile = Annotated[
    str | None, typer.Option(metavar="NAME", help="of a benchmark file's benchmark.profiles, e.g. quick")
]
PublicImages = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="other images of the kind, no members: for floors, and for --candidates"),
]
CandidateImages = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="images of which to say whether they took part: npz or a folder; + --public"),
]
ShowAll = Annotated[bool, typer.Option("--all", help="show every attack in every round, and every caveat")]
FailAbove = Annotated[
    list[str],
    typer.Option(
        "--fail-above", metavar="COLUMN=VALUE",
        help="exit with code 4 where a row of the leakage table is above, e.g. leakage=0.2, server:leakage=0.2, "
        "noise/server:recovered=0; any numeric column of docs/reference/tables.md",
    ),
]  # fmt: skip
# it acts as soon as it is read, before the file is: commands need not look at it
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code", callback=_allow, is_eager=True,
        help="run the code that the file or the run names (FILE.py:factory, package.module:name): read it before",
    ),
]  # fmt: skip


out = Terminal()

AsJson = Annotated[
    bool, typer.Option("--json", help="print one JSON object and nothing else; on a terminal, progress on stderr")
]


@dataclass(frozen=True)
class Answer:
    """What a command found. data: plain values. error: what it ends with once that is printed, if anything."""

    data: dict[str, Any] = field(default_factory=dict)
    error: RunError | None = None


def command(function: Callable[..., Answer]) -> Callable[..., None]:
    """A command of the command line, with the option `--json` behind its own."""
    own = signature(function).parameters.values()
    option = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    shown = [*(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own), option]

    @wraps(function)
    def with_json(as_json: bool, **given: Any) -> None:
        try:
            answer = _in_json(function, given) if as_json else function(**given)
        except SystemExit as error:  # no code of ours ends the program from inside a command
            raise RunError(f"code that was allowed to run called sys.exit({error.code!r})") from None
        if answer.error is not None:
            raise answer.error

    vars(with_json)["__signature__"] = signature(function).replace(parameters=shown, return_annotation=None)
    with_json.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return with_json


def _in_json(function: Callable[..., Answer], given: dict[str, Any]) -> Answer:
    """The answer, printed as JSON; an error too, which is raised behind it."""
    people = sys.stderr if sys.stderr.isatty() else io.StringIO()
    try:
        with contextlib.redirect_stdout(people), contextlib.redirect_stderr(people):
            answer = function(**given)
    except Exception as error:
        known = isinstance(error, InputError | RunError)
        foreseen = str(error) if known else no_path(error) or refused_file(error)
        print_json({"error": foreseen or f"unexpected {said_by(error)}"})
        raise
    print_json(answer.data | ({"error": str(answer.error)} if answer.error is not None else {}))
    return answer


def print_json(data: dict[str, Any]) -> None:
    print_data(data, default=_plain)


def _plain(value: Any) -> Any:
    """Paths as text, and numbers of NumPy as numbers."""
    return value.item() if hasattr(value, "item") else str(value)


def records(frame: Any) -> list[dict[str, Any]]:
    """The rows of a DataFrame with the columns that have a value in them."""
    rows = json.loads(frame.to_json(orient="records"))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def read_records(table: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file that a command wrote."""
    import pandas as pd

    return records(pd.read_csv(table))


def read_json(path: Path) -> dict[str, Any]:
    """What a command wrote."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def say(line: str) -> None:
    """As it is: brackets are no markup, and paths are not broken."""
    out.print(line, soft_wrap=True)


def warn(line: str) -> None:
    """A line for people, on stderr."""
    print_error(line)


def draw(figures: Callable[[], object]) -> None:
    """Figures that cannot be drawn cost a line, not the table."""
    try:
        with out.status("drawing figures …"):
            figures()
    except Exception as error:
        warn(f"figures could not be drawn: {type(error).__name__}: {' '.join(str(error).split())}")


def here(path: Path) -> Path:
    """The path as seen from the working folder, where it lies below."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_absolute() and path.is_relative_to(folder) else path
