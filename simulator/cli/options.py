"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from attacks.interface.own_code import allow_code


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
