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
from rich.text import Text

from attacks.interface.errors import InputError
from simulator.cli.output import (
    AllowCode,
    Answer,
    CandidateImages,
    PublicImages,
    ShowAll,
    command,
    out,
    read_json,
    read_records,
    say,
)
from simulator.errors import printable

if TYPE_CHECKING:
    from attacks import Knowledge, Observation
    from simulator.audit.plan import AuditOptions
    from simulator.rundir.run import Run
    from simulator.scenario.sections import AttackConfig


@dataclass(frozen=True)
class ObservationOptions:
    """The options that name an observation, as they were typed."""

    model: Annotated[str | None, typer.Option(metavar="FILE.py:FACTORY", help="returns the nn.Module")] = None
    initial: Annotated[Path | None, typer.Option(help="checkpoint sent: safetensors, .pt or npz")] = None
    final: Annotated[Path | None, typer.Option(help="checkpoint returned, likewise")] = None
    shape: Annotated[str | None, typer.Option(help="of an input image: channels,height,width")] = None
    mean: Annotated[str | None, typer.Option(metavar="M,…", help="that clients subtract from pixels in [0, 1]")] = None
    std: Annotated[str | None, typer.Option(metavar="S,…", help="that clients divide by after that")] = None
    run: Annotated[Path | None, typer.Option(help="a recorded run instead of two checkpoints")] = None
    round: Annotated[int, typer.Option(help="with --run")] = 1
    client: Annotated[int, typer.Option(help="with --run; -1 is the union of a round's clients")] = -1
    threat_model: Annotated[str | None, typer.Option(help="with --run; default server, for -1 observer")] = None
    cell: Annotated[str, typer.Option(help="with --run: which cell of a sweep")] = ""
    allow_code: AllowCode = False
    know: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE", help="what the adversary is told")] = None

    @property
    def in_pixels(self) -> bool:
        """Whether images are given as pixels in [0, 1]: where it is told how these become inputs."""
        return self.run is not None or self.mean is not None or self.std is not None

    def observe(self) -> tuple["Observation", "Knowledge", "Run | None"]:
        """(the observation, what its adversary was granted, the run it is of: None beside two checkpoints).

        --know replaces what the adversary of a run was told.
        """
        from simulator.results.keys import ALL
        from simulator.rundir.run import Run
        from simulator.tools.attack_pair import normalized, observe_pair, parse_knowledge

        knowledge = parse_knowledge(self.know or [])
        pair = {"--model": self.model, "--initial": self.initial, "--final": self.final, "--shape": self.shape}
        pair |= {"--mean": self.mean, "--std": self.std}
        if self.run is None:
            observation = observe_pair(self.model, self.initial, self.final, self.shape)
            return observation, normalized(knowledge, self.mean, self.std, observation.input_shape), None
        if given := ", ".join(option for option, value in pair.items() if value is not None):
            raise InputError(f"--run {str(self.run)!r} brings its model and checkpoints: leave out {given}, or --run")
        record = Run(self.run)
        threat_model = self.threat_model or ("observer" if self.client == ALL else "server")
        observation, granted = record.observation(self.round, self.client, threat_model, self.cell)
        return observation, knowledge if self.know else granted, record

    def audit_options(self, attack: "AttackConfig", images: dict[str, Path | None], seed: int) -> "AuditOptions":
        """An attack on two checkpoints as an audit has it. images: truth, public and candidates, where given."""
        from simulator.audit.plan import AuditOptions
        from simulator.tools.attack_pair import parse_numbers, parse_shape

        assert self.model is not None and self.shape is not None
        return AuditOptions.of(
            recording="",
            model=self.model,
            shape=parse_shape(self.shape),
            mean=parse_numbers("--mean", self.mean),
            std=parse_numbers("--std", self.std),
            attacks=(attack,),
            seed=seed,
            **images,
        )


def with_observation_options(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """A command with a parameter `which` has the options of ObservationOptions in its place on the command line.

    Its `out_dir` is checked before anything else.
    """
    own = [parameter for name, parameter in signature(function).parameters.items() if name != "which"]
    options = signature(ObservationOptions).parameters
    shown = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in (*own, *options.values())]

    @wraps(function)
    def with_options(**given: Any) -> Answer:
        from simulator.results.disk import check_out

        check_out(given["out_dir"])
        return function(which=ObservationOptions(**{name: given.pop(name) for name in options}), **given)

    vars(with_options)["__signature__"] = signature(function).replace(parameters=shown)
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return with_options


@command
@with_observation_options
def attack(
    name: Annotated[str, typer.Option("--attack", metavar="NAME", help="which attack; `fedspill list` names them")],
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for reconstructions.npz and facts.json")],
    which: ObservationOptions,
    option: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="an option of the attack")] = [],
    truth: Annotated[
        Path | None, typer.Option(metavar="PATH", help="the private images, for scores: an npz file, or a folder")
    ] = None,
    public: PublicImages = None,
    candidates: CandidateImages = None,
    seed: Annotated[int, typer.Option(help="of the attack; a recorded run brings its own")] = 0,
    show_all: ShowAll = False,
) -> Answer:
    """Attack two checkpoints, or a recorded observation once more. Private images are not needed; with --truth, what
    comes out is scored. There are tables, pictures and a page, as of a run."""
    from simulator.audit.run_audit import audit_pair
    from simulator.cli.finish import Shown, finish_run
    from simulator.evaluation.attack_run import AttackRun
    from simulator.evaluation.truth import Attacked
    from simulator.results.keys import ObservationKey
    from simulator.run.display import step_bar
    from simulator.tools.attack_pair import FACTS, is_replaceable, parse_options, write_replayed, write_result

    is_replaceable(out_dir)
    images = {"truth": truth, "public": public, "candidates": candidates}
    if which.run is not None and any(images.values()):
        given = " and ".join(f"--{image}" for image, path in images.items() if path)
        raise InputError(f"{given}: for two checkpoints, beside --run leave it out: a run brings its own images")
    observation, granted, record = which.observe()
    options = which.audit_options(parse_options(name, option), images, seed) if record is None else None
    if options is not None:
        run = AttackRun(options.attacks[0], seed)
    else:
        assert record is not None
        key = ObservationKey(observation.round, observation.client, observation.threat_model)
        run = record.attack_run(parse_options(name, option) if option else name, key, which.cell)
    with step_bar() as report:
        found = run.run(observation, granted, lambda done, total, loss: report(f"{name}, loss {loss:.2e}", done, total))
    write_result(out_dir, name, found, run.knowledge(granted), pixels=which.in_pixels)
    if options is not None:
        audit_pair(out_dir.resolve(), options, observation, granted, found)
    elif record is not None:
        recorded, told = record.store(which.cell).recorded(key), run.knowledge(granted)
        attacked = Attacked(recorded, observation, told, found)
        write_replayed(out_dir.resolve(), record, which.cell, run.config, granted, attacked)
    show_warnings(found.warnings)
    if not which.in_pixels:
        show_warnings(("images are shown as the network saw them: where training normalizes, give --mean and --std",))
    held = 0 if found.held is None else len(found.held)
    inferred = "" if found.num_inferred is None else f", {found.num_inferred} inferred"
    count = f"{len(found.images)} images{f', {held} held back' if held else ''}{inferred}"
    out.print(f"{count}, {found.seconds:.1f} s: {out_dir}")
    facts = read_json(out_dir / FACTS)
    ended = finish_run(out_dir, figures=True, shown=Shown(show_all))
    return Answer(facts | ended.data, ended.error)


@command
@with_observation_options
def member(
    candidates: Annotated[Path, typer.Option(metavar="PATH", help="an npz file with `images`, or a folder of them")],
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for membership.csv")],
    which: ObservationOptions,
    public: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="the same of images that are no members: calibrates false alarms"),
    ] = None,
) -> Answer:
    """Say which candidate images an update was trained on; a higher score means a member.

    Images are pixels in [0, 1] with --mean, --std or --run, and else in the model's input space.
    """
    import torch

    from attacks.calibration import Calibrated
    from attacks.membership import MembershipTest
    from attacks.update.spectrum import infer_image_count
    from simulator.evaluation.candidate_images import (
        load_candidates,
        membership_words,
        scale_warning,
        to_input_space,
        write_membership,
    )

    given = {"candidates": candidates, "public images": public}
    files = [load_candidates(p, name, in_pixels=which.in_pixels) for name, p in given.items() if p is not None]
    observation, knowledge, _ = which.observe()
    if which.in_pixels:
        files = [to_input_space(images, observation, knowledge) for images in files]
    test = MembershipTest.of(observation, knowledge, torch.cat(files))
    residual, *outsiders = [test.residual(images) for images in files]
    warnings = (*test.warnings, *filter(None, [scale_warning(files[0], observation)]))
    show_warnings(warnings)
    table = out_dir / "membership.csv"
    write_membership(table, residual, Calibrated.of(residual, *outsiders) if outsiders else None)
    count = infer_image_count(observation)
    clear = count is not None and count.has_spectral_gap
    said = membership_words(residual, next(iter(outsiders), None), test.num_private, clear)
    for sentence in said:
        say(sentence)
    out.print(f"{len(residual)} candidates, {test.num_private} private images: {table}")
    facts = {"num_private": test.num_private, "warnings": warnings, "said": said}
    return Answer({**facts, "candidates": read_records(table)})


@command
@with_observation_options
def diagnose(
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="for diagnose.json and layers.csv")],
    which: ObservationOptions,
    images: Annotated[
        Path | None, typer.Option(metavar="PATH", help="public or reconstructed ones: npz with `images`, or a folder")
    ] = None,
    evaluator: Annotated[bool, typer.Option("--evaluator", help="with --run: on the private images")] = False,
) -> Answer:
    """Say which attack to expect something of, and whether the update is in the kernel regime.

    Images are pixels in [0, 1] with --mean, --std or --run, and else in the model's input space.
    """
    from simulator.evaluation.candidate_images import scale_warning
    from simulator.tools import diagnosis
    from simulator.tools.diagnosis import advice

    if evaluator and (which.run is None or images is not None):
        raise InputError("--evaluator measures on the private images of a run: give --run and no --images")
    observation, knowledge, record = which.observe()
    seed = record.seed(which.cell) if record is not None else 0
    view = "evaluator" if evaluator else "adversary"
    if evaluator and record is not None:
        inputs, source = diagnosis.private_images(record, observation, which.cell), "the private ones"
    else:
        inputs, source = diagnosis.adversary_images(images, observation, knowledge, which.in_pixels)
    found = diagnosis.measure_regime(observation, inputs, evaluator, seed)
    show_warnings(tuple(filter(None, [scale_warning(inputs, observation)])))
    own = None if evaluator else diagnosis.own_images(observation, inputs, found)
    diagnosis.write_diagnosis(out_dir, found, view, source, own)
    say(f"{diagnosis.VIEWS[view]}: {found.on_images.images} images, {source}")
    for table in diagnosis.diagnosis_tables(found):
        out.print(table)
    say(found.verdict)
    said = advice(observation, knowledge, found)
    if not evaluator and found.update.delta_linf > 0:
        said = [diagnosis.whose_images(own, len(inputs)), *said]
    for line in said:
        say(line)
    say(f"written: {out_dir / 'diagnose.json'}")
    return Answer({**read_json(out_dir / "diagnose.json"), "said": said})


def show_warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        out.print(Text.assemble(("warning", "yellow"), ": ", printable(warning)))
