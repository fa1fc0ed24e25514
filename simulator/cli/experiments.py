"""The commands that run no scenario of the user's: distill, paper."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from attacks.interface.errors import InputError
from simulator.cli.output import Answer, Overrides, Verbose, command, out, say


@command
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
) -> Answer:
    """Distill images to a few synthetic ones; measure them on infinitely wide, standard and linearized networks."""
    from clients.distillation import DistillOptions
    from simulator.results.disk import check_out
    from simulator.run.display import step_bar
    from simulator.tools.distillation import Owner, accuracy_lines, distill_scenario, run_distillation

    check_out(out_dir)
    owner = Owner.of(distill_scenario(overrides, train, seed))
    options = DistillOptions(method=method, iterations=iterations, kernel=owner.kernel_named(kernel))
    with step_bar() as report:
        facts = run_distillation(owner, options, size, out_dir, report, max_steps=standard_steps)
    for line in accuracy_lines(facts):
        say(line)
    say(f"written: {out_dir / 'distill.json'}")
    return Answer(facts)


@command
def paper(
    figure: Annotated[str | None, typer.Argument(metavar="FIGURE", help="e.g. figure3; --list names them")] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="for data.csv, claims.json, …")] = None,
    profile: Annotated[str, typer.Option(help="quick, or full: the paper's size")] = "quick",
    overrides: Overrides = [],
    sheet: Annotated[bool, typer.Option("--sheet", help="draw the reconstructions too, in sheet.png")] = False,
    names: Annotated[bool, typer.Option("--list", help="list the experiments")] = False,
    verbose: Verbose = False,
) -> Answer:
    """Rerun an experiment of the paper, and judge its claims by what comes out. Resumes where it stopped."""
    from simulator.paper.command import listing, run_experiment, titles

    if names:
        out.print(listing())
        return Answer({"experiments": titles()})
    if figure is None or out_dir is None:
        raise InputError("fedspill paper FIGURE --out DIR measures an experiment, fedspill paper --list names them")
    claims = run_experiment(figure, profile, overrides, out_dir, out, sheet=sheet, verbose=verbose)
    files = ["data.csv", "claims.json", "figure.png"] + ["sheet.png"] * sheet
    say(f"written: {out_dir}: {', '.join(files)}")
    return Answer({"claims": [asdict(claim) for claim in claims], "files": [str(out_dir / name) for name in files]})
