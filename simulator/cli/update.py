"""The commands about one update: attack it, score candidates for membership, diagnose it.

An update is given by two checkpoints, or as a recorded observation of a run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from attacks.interface.errors import InputError

if TYPE_CHECKING:
    from attacks import Knowledge, Observation
    from simulator.results.run import Run

out = Console(highlight=False)


@dataclass(frozen=True)
class ObservationOptions:
    """The options that name an observation, as they were typed."""

    model: Annotated[str | None, typer.Option(metavar="FILE.py:FACTORY", help="returns the nn.Module")] = None
    initial: Annotated[Path | None, typer.Option(help="checkpoint sent: safetensors, .pt or npz")] = None
    final: Annotated[Path | None, typer.Option(help="checkpoint returned, likewise")] = None
    shape: Annotated[str | None, typer.Option(help="of an input image: channels,height,width")] = None
    run: Annotated[Path | None, typer.Option(help="a recorded run instead of two checkpoints")] = None
    round: Annotated[int, typer.Option(help="with --run")] = 1
    client: Annotated[int, typer.Option(help="with --run; -1 is the union of a round's clients")] = -1
    threat_model: Annotated[str | None, typer.Option(help="with --run; default server, for -1 observer")] = None
    cell: Annotated[str, typer.Option(help="with --run: which cell of a sweep")] = ""
    know: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE", help="what the adversary is told")] = None

    def observe(self) -> tuple["Observation", "Knowledge", "Run | None"]:
        """(the observation, what its adversary was granted, the run it is of: None beside two checkpoints).

        --know replaces what the adversary of a run was told.
        """
        from simulator.results.keys import ALL
        from simulator.results.run import Run
        from simulator.tools.attack_pair import observe_pair, parse_knowledge

        knowledge = parse_knowledge(self.know or [])
        pair = {"--model": self.model, "--initial": self.initial, "--final": self.final, "--shape": self.shape}
        if self.run is None:
            return observe_pair(self.model, self.initial, self.final, self.shape), knowledge, None
        if given := ", ".join(option for option, value in pair.items() if value is not None):
            raise InputError(f"--run {str(self.run)!r} brings its model and checkpoints: leave out {given}, or --run")
        record = Run(self.run)
        threat_model = self.threat_model or ("observer" if self.client == ALL else "server")
        observation, granted = record.observation(self.round, self.client, threat_model, self.cell)
        return observation, knowledge if self.know else granted, record


def with_observation_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a parameter `which` has the options of ObservationOptions in its place on the command line.

    Its `out_dir` is checked before anything else.
    """
    own = [parameter for name, parameter in signature(command).parameters.items() if name != "which"]
    options = signature(ObservationOptions).parameters
    shown = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in (*own, *options.values())]

    @wraps(command)
    def with_options(**given: Any) -> None:
        from simulator.results.storage import check_out

        check_out(given["out_dir"])
        command(which=ObservationOptions(**{name: given.pop(name) for name in options}), **given)

    vars(with_options)["__signature__"] = signature(command).replace(parameters=shown)
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return with_options


@with_observation_options
def attack(
    name: Annotated[str, typer.Option("--attack", metavar="NAME", help="which attack; `fedspill list` names them")],
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for reconstructions.npz and facts.json")],
    which: ObservationOptions,
    option: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="an option of the attack")] = [],
    seed: Annotated[int, typer.Option(help="of the attack; a recorded run brings its own")] = 0,
) -> None:
    """Attack two checkpoints, or a recorded observation once more. Private images are not needed."""
    from simulator.adversary.attack_run import AttackRun
    from simulator.results.keys import ObservationKey
    from simulator.run.display import step_bar
    from simulator.tools.attack_pair import parse_options, write_result

    observation, granted, record = which.observe()
    if record is None:
        run = AttackRun(parse_options(name, option), seed)
    else:
        key = ObservationKey(observation.round, observation.client, observation.threat_model)
        run = record.attack_run(parse_options(name, option) if option else name, key, which.cell)
    with step_bar() as report:
        found = run.run(observation, granted, lambda done, total, loss: report(f"{name}, loss {loss:.2e}", done, total))
    write_result(out_dir, name, found, run.knowledge(granted), pixels=record is not None)
    show_warnings(found.warnings)
    held = 0 if found.held is None else len(found.held)
    count = f"{len(found.images)} images{f', {held} held back' if held else ''}, {found.num_inferred} inferred"
    out.print(f"{count}, {found.seconds:.1f} s: {out_dir}")


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
    from simulator.tools.candidates import load_candidates, to_input_space, write_membership

    images = load_candidates(candidates)
    observation, knowledge, record = which.observe()
    if record is not None:
        images = to_input_space(images, observation, knowledge)
    test = MembershipTest.of(observation, knowledge, images)
    write_membership(out_dir, test.residual(images))
    show_warnings(test.warnings)
    out.print(f"{len(images)} candidates, {test.num_private} private images: {out_dir / 'membership.csv'}")


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
    from simulator.tools import diagnosis

    if evaluator and (which.run is None or images is not None):
        raise InputError("--evaluator measures on the private images of a run: give --run and no --images")
    observation, knowledge, record = which.observe()
    seed = record.seed(which.cell) if record is not None else 0
    view = "evaluator" if evaluator else "adversary"
    if evaluator and record is not None:
        inputs, source = diagnosis.private_images(record, observation, which.cell), "the private ones"
    else:
        inputs, source = diagnosis.adversary_images(images, observation, knowledge, record is not None)
    found = diagnosis.measure_regime(observation, inputs, evaluator, seed)
    diagnosis.write_diagnosis(out_dir, found, view, source)
    out.print(f"{view}'s version, {found.on_images.images} images: {source}", soft_wrap=True)
    for table in diagnosis.diagnosis_tables(found):
        out.print(table)
    out.print(found.verdict, soft_wrap=True)
    out.print(f"written: {out_dir / 'diagnose.json'}", soft_wrap=True)


def show_warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        out.print(f"[yellow]warning[/]: {warning}")
