"""The commands about one update: attack it, score candidates for membership, diagnose it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from attacks.interface.errors import InputError
from simulator.cli.observation_options import ObservationOptions, with_observation_options

out = Console()


@with_observation_options
def attack(
    name: Annotated[str, typer.Option("--attack", metavar="NAME", help="which attack; `fedspill list` names them")],
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for reconstructions.npz and facts.json")],
    which: ObservationOptions,
    option: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="an option of the attack")] = [],
    seed: Annotated[int, typer.Option(help="of the attack; a recorded run brings its own")] = 0,
) -> None:
    """Attack two checkpoints, or a recorded observation once more. Private images are not needed."""
    from rich.progress import Progress

    from simulator.adversary.attack_run import AttackRun
    from simulator.results.storage import check_out
    from simulator.tools.attack_pair import parse_options, write_result

    check_out(out_dir)
    observation, granted, record = which.observe()
    if record is None:
        run = AttackRun(parse_options(name, option), seed)
    else:
        run = record.attack_run(parse_options(name, option) if option else name, which.cell)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name)

        def show(done: int, total: int, loss: float) -> None:
            bar.update(task, completed=done, total=total, description=f"{name}, loss {loss:.2e}")

        found = run.run(observation, granted, show)
    write_result(out_dir, name, found, run.knowledge(granted), pixels=record is not None)
    show_warnings(found.warnings)
    out.print(
        f"{len(found.images)} images, {found.num_inferred} inferred, {found.seconds:.1f} s: {out_dir}",
        highlight=False,
    )


@with_observation_options
def member(
    candidates: Annotated[Path, typer.Option(metavar="FILE.npz", help="with an array `images`, (Q, C, H, W)")],
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for membership.csv")],
    which: ObservationOptions,
) -> None:
    """Score candidate images by whether an update was trained on them; a higher score means a member.

    Candidates are in the model's input space beside two checkpoints, in [0, 1] with --run.
    """
    from attacks.membership import MembershipTest
    from simulator.results.storage import check_out
    from simulator.tools.candidates import load_candidates, to_input_space, write_membership

    check_out(out_dir)
    images = load_candidates(candidates)
    observation, knowledge, record = which.observe()
    if record is not None:
        images = to_input_space(images, observation, knowledge)
    test = MembershipTest.of(observation, knowledge, images)
    write_membership(out_dir, test.residual(images))
    show_warnings(test.warnings)
    out.print(
        f"{len(images)} candidates, {test.num_private} private images: {out_dir / 'membership.csv'}", highlight=False
    )


@with_observation_options
def diagnose(
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for diagnose.json and layers.csv")],
    which: ObservationOptions,
    images: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="with an array `images`, public or reconstructed ones")
    ] = None,
    evaluator: Annotated[bool, typer.Option("--evaluator", help="with --run: on the private images")] = False,
) -> None:
    """Say whether an update is in the kernel regime, and so which attack to expect something of.

    Images are in the model's input space beside two checkpoints, in [0, 1] with --run.
    """
    from simulator.results.storage import check_out
    from simulator.tools.diagnosis import (
        adversary_images,
        diagnosis_tables,
        measure_regime,
        private_images,
        write_diagnosis,
    )

    check_out(out_dir)
    if evaluator and (which.run is None or images is not None):
        raise InputError("--evaluator measures on the private images of a run: give --run and no --images")
    observation, knowledge, record = which.observe()
    seed = record.cells[which.cell].scenario.seed if record is not None else 0
    if evaluator and record is not None:
        view, (inputs, source) = "evaluator", (private_images(record, observation, which.cell), "the private ones")
    else:
        view, (inputs, source) = "adversary", adversary_images(images, observation, knowledge, record is not None)
    found = measure_regime(observation, inputs, evaluator, seed)
    write_diagnosis(out_dir, found, view, source)
    out.print(f"{view}'s version, {found.on_images.images} images: {source}", highlight=False, soft_wrap=True)
    for table in diagnosis_tables(found):
        out.print(table)
    out.print(found.verdict, highlight=False, soft_wrap=True)
    out.print(f"written: {out_dir / 'diagnose.json'}", highlight=False, soft_wrap=True)


def show_warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        out.print(f"[yellow]warning[/]: {warning}", highlight=False)
