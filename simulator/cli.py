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

Overrides = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="override a key, e.g. model.width=1024")
]
ModelFile = Annotated[str | None, typer.Option("--model", metavar="FILE.py:FACTORY", help="returns the nn.Module")]
Initial = Annotated[Path | None, typer.Option("--initial", help="checkpoint sent (safetensors state dict)")]
Final = Annotated[Path | None, typer.Option("--final", help="checkpoint returned (safetensors state dict)")]
Shape = Annotated[str | None, typer.Option("--shape", help="of an input image: channels,height,width")]
RunDir = Annotated[Path | None, typer.Option("--run", metavar="RUN", help="a recorded run instead of two checkpoints")]
Round = Annotated[int, typer.Option("--round", help="with --run")]
Client = Annotated[int, typer.Option("--client", help="with --run; -1 is the union of a round's clients")]
ThreatModel = Annotated[str | None, typer.Option("--threat-model", help="with --run; default server, for -1 observer")]
CellName = Annotated[str, typer.Option("--cell", help="with --run: which cell of a sweep")]
Know = Annotated[list[str], typer.Option("--know", metavar="FIELD=VALUE", help="what the adversary is told")]
ScenarioFile = Annotated[Path, typer.Argument(metavar="FILE", help="a scenario, e.g. scenarios/quickstart.yaml")]


@cli.command()
def run(
    file: ScenarioFile,
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="the run directory itself")] = None,
    overrides: Overrides = [],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="do a finished run again")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="show what Flower and Ray say")] = False,
) -> None:
    """Run a scenario: federate, attack every round, and print the leakage table."""
    from simulator.plan import make_plan, needs_run
    from simulator.scenario import load_scenario

    plan = make_plan(load_scenario(file, overrides), out_dir)
    if not needs_run(plan, overwrite):
        out.print(f"{plan.run_dir} holds this run already, finished; --overwrite does it again", highlight=False)
        show_run(plan.run_dir)
        return
    from simulator.display import Bars
    from simulator.engine import simulate

    simulate(plan, Bars(Console(stderr=True)), overwrite, verbose)
    finish_run(plan.run_dir, figures=plan.scenario.output.figures)


@cli.command()
def benchmark(
    file: ScenarioFile,
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="the run directory itself")] = None,
    profile: Annotated[str | None, typer.Option(help="of the file's benchmark.profiles, e.g. quick")] = None,
    overrides: Overrides = [],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="do a finished benchmark again")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="show what Flower and Ray say")] = False,
) -> None:
    """Compare defenses: each against every attack and threat model, over several seeds. Resumes where it stopped."""
    from simulator.benchmark import TABLE, load_benchmark, write_benchmark
    from simulator.plan import make_plan, needs_run
    from simulator.record import Record
    from simulator.tables import BENCHMARK_LEGEND, benchmark_view

    plan = make_plan(load_benchmark(file, profile, overrides), out_dir)
    if needs_run(plan, overwrite):
        from simulator.display import Bars
        from simulator.engine import simulate

        simulate(plan, Bars(Console(stderr=True)), overwrite, verbose)
    record = Record(plan.run_dir)
    table = write_benchmark(record)
    if plan.scenario.output.figures:
        from simulator.benchmark_figures import draw_benchmark

        with out.status("drawing figures …"):
            draw_benchmark(record, table)
    out.print(benchmark_view(table))
    out.print(BENCHMARK_LEGEND, highlight=False)
    out.print(f"figures: {plan.run_dir / 'figures'}", highlight=False, soft_wrap=True)
    out.print(f"table:   {plan.run_dir / TABLE}", highlight=False, soft_wrap=True)


@cli.command()
def check(file: ScenarioFile, overrides: Overrides = []) -> None:
    """Validate a scenario; print what would run and what it would cost."""
    from simulator.estimate import describe_plan
    from simulator.plan import make_plan
    from simulator.scenario import load_scenario

    out.print(describe_plan(make_plan(load_scenario(file, overrides))), highlight=False)


@cli.command()
def attack(
    name: Annotated[str, typer.Option("--attack", metavar="NAME", help="which attack; `fedleak list` names them")],
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for reconstructions.npz and facts.json")],
    model: ModelFile = None,
    initial: Initial = None,
    final: Final = None,
    shape: Shape = None,
    run_dir: RunDir = None,
    round: Round = 1,
    client: Client = -1,
    threat_model: ThreatModel = None,
    cell: CellName = "",
    know: Know = [],
    option: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="an option of the attack")] = [],
    seed: Annotated[int, typer.Option(help="of the attack; a recorded run brings its own")] = 0,
) -> None:
    """Attack two checkpoints, or a recorded observation once more. Private images are not needed."""
    from rich.progress import Progress

    from simulator.jobs import run_attack
    from simulator.record import Record
    from simulator.single import observe_pair, parse_knowledge, parse_options, write_result

    knowledge = parse_knowledge(know)
    threads = 1
    if run_dir is not None:
        record = Record(run_dir)
        observation, told = record.observation(round, client, threat_model or default_threat_model(client), cell)
        knowledge = knowledge if know else told
        config = parse_options(name, option) if option else record.attack_config(name, cell)
        seed, threads = record.cells[cell].scenario.seed, record.cells[cell].scenario.engine.threads
    else:
        observation, config = observe_pair(model, initial, final, shape), parse_options(name, option)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name)

        def show(done: int, total: int, loss: float) -> None:
            bar.update(task, completed=done, total=total, description=f"{name}, loss {loss:.2e}")

        found = run_attack(config, observation, knowledge, seed, threads, show)
    write_result(out_dir, name, found, knowledge, pixels=run_dir is not None)
    for warning in found.warnings:
        out.print(f"[yellow]warning[/]: {warning}", highlight=False)
    out.print(
        f"{len(found.images)} images, {found.num_inferred} inferred, {found.seconds:.1f} s: {out_dir}", highlight=False
    )


@cli.command()
def member(
    candidates: Annotated[Path, typer.Option(metavar="FILE.npz", help="with an array `images`, (Q, C, H, W)")],
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for membership.csv")],
    model: ModelFile = None,
    initial: Initial = None,
    final: Final = None,
    shape: Shape = None,
    run_dir: RunDir = None,
    round: Round = 1,
    client: Client = -1,
    threat_model: ThreatModel = None,
    cell: CellName = "",
    know: Know = [],
) -> None:
    """Score candidate images by whether an update was trained on them; a higher score means a member.

    Candidates are in the model's input space beside two checkpoints, in [0, 1] with --run.
    """
    from attacks.membership import MembershipTest
    from simulator.record import Record
    from simulator.single import load_candidates, observe_pair, parse_knowledge, to_input_space, write_membership

    knowledge = parse_knowledge(know)
    images = load_candidates(candidates)
    if run_dir is not None:
        record = Record(run_dir)
        observation, told = record.observation(round, client, threat_model or default_threat_model(client), cell)
        knowledge = knowledge if know else told
        images = to_input_space(images, observation, knowledge)
    else:
        observation = observe_pair(model, initial, final, shape)
    test = MembershipTest.of(observation, knowledge, images)
    residual = test.residual(images)
    write_membership(out_dir, residual)
    for warning in test.warnings:
        out.print(f"[yellow]warning[/]: {warning}", highlight=False)
    out.print(
        f"{len(images)} candidates, {test.num_private} private images: {out_dir / 'membership.csv'}", highlight=False
    )


@cli.command()
def diagnose(
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for diagnose.json and layers.csv")],
    images: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="with an array `images`, public or reconstructed ones")
    ] = None,
    evaluator: Annotated[bool, typer.Option("--evaluator", help="with --run: on the private images")] = False,
    model: ModelFile = None,
    initial: Initial = None,
    final: Final = None,
    shape: Shape = None,
    run_dir: RunDir = None,
    round: Round = 1,
    client: Client = -1,
    threat_model: ThreatModel = None,
    cell: CellName = "",
    know: Know = [],
) -> None:
    """Say whether an update is in the kernel regime, and so which attack to expect something of.

    Images are in the model's input space beside two checkpoints, in [0, 1] with --run.
    """
    from simulator.diagnosis import adversary_images, diagnosis_tables, private_images, write_diagnosis
    from simulator.diagnosis import diagnose as measure
    from simulator.record import Record
    from simulator.single import observe_pair, parse_knowledge

    knowledge, seed = parse_knowledge(know), 0
    if evaluator and (run_dir is None or images is not None):
        raise InputError("--evaluator measures on the private images of a run: give --run and no --images")
    if run_dir is not None:
        record = Record(run_dir)
        observation, told = record.observation(round, client, threat_model or default_threat_model(client), cell)
        knowledge, seed = knowledge if know else told, record.cells[cell].scenario.seed
    else:
        observation = observe_pair(model, initial, final, shape)
    if evaluator:
        view, (inputs, source) = "evaluator", (private_images(record, observation, cell), "the private ones")
    else:
        view, (inputs, source) = "adversary", adversary_images(images, observation, knowledge, run_dir is not None)
    found = measure(observation, inputs, evaluator, seed)
    write_diagnosis(out_dir, found, view, source)
    out.print(f"{view}'s version, {found.images} images: {source}", highlight=False, soft_wrap=True)
    for table in diagnosis_tables(found):
        out.print(table)
    out.print(found.verdict, highlight=False, soft_wrap=True)
    out.print(f"written: {out_dir / 'diagnose.json'}", highlight=False, soft_wrap=True)


@cli.command()
def distill(
    method: Annotated[str, typer.Option(help="kip, rkip or rkip_finite")],
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for distill.json, distilled.npz and .png")],
    overrides: Overrides = [],
    train: Annotated[int, typer.Option(help="images to distill")] = 500,
    size: Annotated[int, typer.Option(help="images to distill them to")] = 20,
    iterations: Annotated[int | None, typer.Option(help="default 50000, rkip_finite 2000")] = None,
    seed: Annotated[int, typer.Option(help="of data, networks and distillation")] = 0,
) -> None:
    """Distill images to a few synthetic ones; measure them on infinitely wide, standard and linearized networks."""
    from rich.progress import Progress

    from clients.distillation import DistillOptions
    from simulator.distillation import Owner, accuracy_lines, distill_scenario, run_distillation

    options = DistillOptions(method=method, iterations=iterations)
    owner = Owner.of(distill_scenario(overrides, train, seed))
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(method)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=what)

        facts = run_distillation(owner, options, size, out_dir, show)
    for line in accuracy_lines(facts):
        out.print(line, highlight=False, soft_wrap=True)
    out.print(f"written: {out_dir / 'distill.json'}", highlight=False, soft_wrap=True)


@cli.command()
def paper(
    figure: Annotated[str | None, typer.Argument(metavar="FIGURE", help="e.g. figure3; --list names them")] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="for data.csv, claims.json, …")] = None,
    profile: Annotated[str, typer.Option(help="quick, or full: the paper's size")] = "quick",
    overrides: Overrides = [],
    sheet: Annotated[bool, typer.Option("--sheet", help="draw the reconstructions too, in sheet.png")] = False,
    names: Annotated[bool, typer.Option("--list", help="list the experiments")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="show what Flower and Ray say")] = False,
) -> None:
    """Rerun an experiment of the paper, and judge its claims by what comes out. Resumes where it stopped."""
    from simulator.paper.command import listing, run_experiment

    if names:
        out.print(listing())
        return
    if figure is None or out_dir is None:
        raise InputError("fedleak paper FIGURE --out DIR measures an experiment, fedleak paper --list names them")
    run_experiment(figure, profile, overrides, out_dir, sheet, out, verbose)
    written = ", ".join(["data.csv", "claims.json", "figure.png"] + ["sheet.png"] * sheet)
    out.print(f"written: {out_dir}: {written}", highlight=False, soft_wrap=True)


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
    from simulator.strategies import known_strategies

    out.print("attacks:    " + ", ".join(sorted(ATTACKS)), highlight=False)
    out.print("defenses:   " + ", ".join(sorted(DEFENSES)) + ", package.module:mod of Flower", highlight=False)
    out.print("data:       " + ", ".join(SOURCES) + ", OWNER/NAME of the Hugging Face hub", highlight=False)
    out.print("models:     " + ", ".join(MODELS) + ", package.module:factory, FILE.py:factory", highlight=False)
    out.print("strategies: " + ", ".join(known_strategies()), highlight=False)


def finish_run(run_dir: Path, figures: bool) -> None:
    """Draw, write the page and print, in this order: the table is the last thing on the screen."""
    if figures:
        from simulator.report import write_report

        with out.status("drawing figures …"):
            write_report(run_dir)
    show_run(run_dir)


def show_run(run_dir: Path) -> None:
    """The table, what its columns mean, and where everything lies, relative to here where it is below."""
    here = Path.cwd()
    run_dir = run_dir.relative_to(here) if run_dir.is_absolute() and run_dir.is_relative_to(here) else run_dir
    from simulator.record import Record
    from simulator.tables import LEGEND, leakage_table

    record = Record(run_dir)
    out.print(leakage_table(record.leakage, record.scenario.swept))
    out.print(LEGEND, highlight=False)
    figures = sorted((run_dir / "figures").glob("*.png"))
    if figures:
        out.print("figures: " + ", ".join(str(path) for path in figures), highlight=False, soft_wrap=True)
        out.print(f"page:    {run_dir / 'report.html'}", highlight=False, soft_wrap=True)
    out.print(f"table:   {run_dir / 'leakage.csv'}", highlight=False, soft_wrap=True)


def default_threat_model(client: int) -> str:
    """Who sees this target: the server sees clients, an observer the union of a round's (-1)."""
    return "server" if client >= 0 else "observer"


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
