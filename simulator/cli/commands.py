"""The command line: for each command a dataclass, whose docstring is the help of the command.

A field is an option, or an argument, with the help text in its type. Nothing heavy is imported here, so that `--help`
answers at once; a function of another module does the work (`main.COMMANDS`). The dataclasses have no methods to
compare and print, which took 4 ms of every command.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from attacks.interface.plugins import allow_code
from simulator.audit import MINUTES, TIMEOUT


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
        help="run the code that the file or the run names (FILE.py:NAME, package.module:NAME): read it before",
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunCommand:
    """Run a scenario: federate, attack every round, and say what leaks.

    Exit code 2: bad input; 1: the run had to stop; 3: no result at all; 4: above --fail-above; 5: some rows without.
    """

    file: ScenarioFile
    out_dir: RunDir = None
    overrides: Overrides = field(default_factory=list)
    fail_above: FailAbove = field(default_factory=list)
    show_all: ShowAll = False
    overwrite: Overwrite = False
    allow_code: AllowCode = False
    verbose: Verbose = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BenchmarkCommand(RunCommand):
    """Compare defenses: each against every attack and threat model, over several seeds. Resumes where it stopped."""

    profile: Profile = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CheckCommand:
    """Validate a scenario or a benchmark; print what would run and what it would cost."""

    file: ScenarioFile
    profile: Profile = None
    overrides: Overrides = field(default_factory=list)
    allow_code: AllowCode = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReportCommand:
    """Say again what a run, an audit or a benchmark found, one that was stopped too, and make its page anew."""

    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="the directory of a run, an audit or a benchmark")]
    fail_above: FailAbove = field(default_factory=list)
    show_all: ShowAll = False
    allow_code: AllowCode = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AuditCommand:
    """Attack what a server recorded: every round, client and threat model. No private image is needed; with --truth,
    what comes out is scored. Goes on where it stopped.

    Exit code 2: bad input; 3: no result at all; 4: above --fail-above; 5: some rows without a result.
    """

    recording: Annotated[Path, typer.Argument(metavar="RECORDING", help="the folder that fedspill.Record wrote")]
    model: Annotated[str, typer.Option(metavar="FILE.py:NAME", help="returns the nn.Module of the federation")]
    shape: Annotated[str, typer.Option(metavar="C,H,W", help="of an input image: channels,height,width, e.g. 3,32,32")]
    mean: Annotated[
        str | None, typer.Option(metavar="M,…", help="that clients subtract, of each channel or of all, e.g. 0.1307")
    ] = None
    std: Annotated[
        str | None, typer.Option(metavar="S,…", help="that clients divide by after that, e.g. 0.3081; default 1")
    ] = None
    truth: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="the private images, for scores: a folder with client_00.npz, … or one npz"),
    ] = None
    owners: Annotated[
        list[str],
        typer.Option("--owner", metavar="NODE=FOLDER", help="whose a file or folder of --truth is; may be repeated"),
    ] = field(default_factory=list)
    public: PublicImages = None
    candidates: CandidateImages = None
    attacks: Annotated[
        list[str], typer.Option("--attack", metavar="NAME", help="may be repeated; default span and a short ntk")
    ] = field(default_factory=list)
    know: Annotated[
        list[str],
        typer.Option(metavar="FIELD=VALUE", help="what the adversary is told, e.g. batch_size=5; false withholds it"),
    ] = field(default_factory=list)
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="default: RECORDING-audit")] = None
    rounds: Annotated[list[int], typer.Option("--round", help="of these rounds only; may be repeated")] = field(
        default_factory=list
    )
    clients: Annotated[
        list[int], typer.Option("--client", help="of these clients only; may be repeated; -1 is all together")
    ] = field(default_factory=list)
    threat_models: Annotated[
        list[str], typer.Option("--threat-model", help="server, observer or history; may be repeated; default all")
    ] = field(default_factory=list)
    seed: Annotated[int, typer.Option(min=0, help="of every random number of the attacks")] = 0
    timeout: Annotated[float, typer.Option(min=1, help="processor seconds that one attack may take")] = TIMEOUT
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="of an idle machine, after which the audit ends; 0: when all is done; "
            f"default {MINUTES:g}, 0 of a gate",
        ),
    ] = None
    workers: Annotated[
        int | None, typer.Option(min=1, help="attacks at a time; default one per core, 1 does without Ray")
    ] = None
    fail_above: FailAbove = field(default_factory=list)
    show_all: ShowAll = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="do a finished audit again")] = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class UpdateCommand:
    """Which update: two checkpoints, or an observation of a recorded run."""

    model: Annotated[str | None, typer.Option(metavar="FILE.py:NAME", help="returns the nn.Module")] = None
    initial: Annotated[Path | None, typer.Option(help="checkpoint sent: safetensors, .pt or npz")] = None
    final: Annotated[Path | None, typer.Option(help="checkpoint returned, likewise")] = None
    shape: Annotated[str | None, typer.Option(help="of an input image: channels,height,width")] = None
    mean: Annotated[str | None, typer.Option(metavar="M,…", help="that clients subtract from pixels in [0, 1]")] = None
    std: Annotated[str | None, typer.Option(metavar="S,…", help="that clients divide by after that")] = None
    run: Annotated[Path | None, typer.Option(help="a recorded run instead of two checkpoints")] = None
    round: Annotated[int, typer.Option(help="with --run")] = 1
    client: Annotated[int, typer.Option(help="with --run; -1 is the union of a round's clients")] = -1
    threat_model: Annotated[str | None, typer.Option(help="with --run; default server, for -1 observer")] = None
    cell: Annotated[str, typer.Option(help="with --run: which setting of a sweep, as `defense=none,seed=0`")] = ""
    allow_code: AllowCode = False
    know: Annotated[list[str], typer.Option(metavar="FIELD=VALUE", help="what the adversary is told")] = field(
        default_factory=list
    )

    @property
    def in_pixels(self) -> bool:
        """Whether images are given as pixels in [0, 1]: where it is told how these become inputs."""
        return self.run is not None or self.mean is not None or self.std is not None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AttackCommand(UpdateCommand):
    """Attack two checkpoints, or a recorded observation once more. Private images are not needed; with --truth, what
    comes out is scored. There are tables, pictures and a page, as of a run."""

    named: Annotated[
        list[str], typer.Option("--attack", metavar="NAME", help="which attack; `fedspill list` names them")
    ] = field(default_factory=list)
    # both are needed; the command asks for the attack first, whose names it lists
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="for tables, pictures and a page")] = None
    option: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="an option of the attack")] = field(
        default_factory=list
    )
    truth: Annotated[
        Path | None, typer.Option(metavar="PATH", help="the private images, for scores: an npz file, or a folder")
    ] = None
    public: PublicImages = None
    candidates: CandidateImages = None
    seed: Annotated[int, typer.Option(help="of the attack; a recorded run brings its own")] = 0
    timeout: Annotated[float, typer.Option(min=1, help="processor seconds that the attack may take")] = 3600.0
    show_all: ShowAll = False

    @property
    def name(self) -> str:
        """The attack's."""
        return self.named[0]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MemberCommand(UpdateCommand):
    """Say which candidate images an update was trained on; a higher score means a member.

    Images are pixels in [0, 1] with --mean, --std or --run, and else in the model's input space.
    """

    candidates: Annotated[Path, typer.Option(metavar="PATH", help="an npz file with `images`, or a folder of them")]
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for membership.csv")]
    public: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="the same of images that are no members: calibrates false alarms"),
    ] = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DiagnoseCommand(UpdateCommand):
    """Say which attack to expect something of, and whether the update is in the kernel regime.

    Images are pixels in [0, 1] with --mean, --std or --run, and else in the model's input space.
    """

    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for diagnose.json and layers.csv")]
    images: Annotated[
        Path | None, typer.Option(metavar="PATH", help="public or reconstructed ones: npz with `images`, or a folder")
    ] = None
    evaluator: Annotated[bool, typer.Option("--evaluator", help="with --run: on the private images")] = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DistillCommand:
    """Distill images to a few synthetic ones; measure them on infinitely wide, standard and linearized networks."""

    method: Annotated[str, typer.Option(help="kip, rkip or rkip_finite")]
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for distill.json, distilled.npz and .png")]
    overrides: Overrides = field(default_factory=list)
    train: Annotated[int, typer.Option(help="images to distill")] = 500
    size: Annotated[int, typer.Option(help="images to distill them to")] = 20
    iterations: Annotated[int | None, typer.Option(help="default 50000, rkip_finite 2000")] = None
    kernel: Annotated[str, typer.Option(help="of KIP and RKIP: limit, authors or width_matched")] = "limit"
    standard_steps: Annotated[int, typer.Option(min=1, help="limit of standard training, for each set")] = 2_000
    seed: Annotated[int, typer.Option(help="of data, networks and distillation")] = 0


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PaperCommand:
    """Rerun an experiment of the paper, and judge its claims by what comes out. Resumes where it stopped."""

    figure: Annotated[str | None, typer.Argument(metavar="FIGURE", help="e.g. figure3; --list names them")] = None
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="for data.csv, claims.json, …")] = None
    profile: Annotated[str, typer.Option(help="quick; two_cores: an hour of two; full: the paper's size")] = "quick"
    overrides: Overrides = field(default_factory=list)
    sheet: Annotated[bool, typer.Option("--sheet", help="draw the reconstructions too, in sheet.png")] = False
    names: Annotated[bool, typer.Option("--list", help="list the experiments")] = False
    price: Annotated[bool, typer.Option("--price", help="say what each profile costs, and measure nothing")] = False
    records: Annotated[
        Path | None, typer.Option(metavar="DIR", help="judge what is recorded in DIR once more, write its page")
    ] = None
    verbose: Verbose = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InitCommand:
    """Write a commented scenario to start from; `fedspill check FILE` accepts it as it is."""

    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="where to write it; default: the screen")] = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SchemaCommand:
    """Print the JSON schema of scenarios and benchmarks: editors complete and check with it."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ListCommand:
    """List the attacks, defenses, data sets, models and strategies that a scenario can name, with a line on each."""
