"""`fedspill attack`: what does one update give away?"""

import math
from functools import partial

from attacks import ATTACKS, InputError
from attacks.update.spectrum import infer_image_count
from simulator.audit.plan import AuditOptions, doubt_trained
from simulator.cli.commands import AttackCommand
from simulator.cli.finish import finish_run
from simulator.cli.inputs import observe, parse_numbers, parse_options, parse_shape
from simulator.cli.output import CommandResult, out, show_warnings
from simulator.evaluation.attack_run import AttackRun
from simulator.results.disk import check_out
from simulator.results.formats import read_json
from simulator.results.keys import ObservationKey
from simulator.run.display import step_bar
from simulator.tools.one_update import FACTS, Update, attack_update, check_replaceable, describe_again, describe_pair


def attack(typed: AttackCommand) -> CommandResult:
    if not any(typed.named):
        raise InputError(f"which attack? Give --attack {', '.join(ATTACKS.known())}, or FILE.py:CLASS")
    if len(typed.named) > 1:
        raise InputError(f"--attack {' and '.join(typed.named)}: one attack at a time; `fedspill audit` takes several")
    if (folder := typed.out_dir) is None:
        raise InputError("where to? Give --out DIR, a folder for tables, pictures and a page")
    check_out(folder)
    check_replaceable(folder)
    update = _update(typed)
    with step_bar() as report:

        def show(done: int, total: int, loss: float) -> None:
            report(typed.name + ("" if math.isnan(loss) else f", loss {loss:.2e}"), done, total)

        error = attack_update(update, folder, typed.in_pixels, typed.timeout, show)
    facts = read_json(folder / FACTS)
    doubt = doubt_trained(update.observation) if typed.run is None else ""
    show_warnings([*([doubt] if doubt else []), *facts.get("warnings", ())])
    if not typed.in_pixels:
        show_warnings(["images are shown as the network saw them: give --mean and --std if training normalizes"])
    if "seconds" in facts:  # it ended, and the disk took its files
        shown, held, inferred = infer_image_count(update.observation), facts["num_held"], facts["num_inferred"]
        guess = " (a guess)" if shown is not None and not shown.has_spectral_gap else ""
        more = f"{f', {held} held back' if held else ''}{'' if inferred is None else f', {inferred} inferred{guess}'}"
        out.print(f"{facts['num_reconstructed']} images{more}, {facts['seconds']:.1f} s: {folder}")
    ended = finish_run(folder, True, typed.show_all)
    if error is not None:
        raise error
    return CommandResult(facts | ended.data, ended.error)


def _update(typed: AttackCommand) -> Update:
    """Return the update with the attack that was asked for. InputError says what is missing or wrong."""
    images = {"truth": typed.truth, "public": typed.public, "candidates": typed.candidates}
    if typed.run is not None and any(images.values()):
        given = " and ".join(f"--{name}" for name, path in images.items() if path)
        raise InputError(f"{given} cannot be used with --run: a run brings its own images")
    observation, granted, record = observe(typed)
    if record is not None:
        key = ObservationKey.of(vars(observation))
        attack = parse_options(typed.name, typed.option) if typed.option else typed.name
        run = record.attack_run(attack, key, typed.cell)
        return Update(observation, granted, run, partial(describe_again, record, typed.cell, key, run.config))
    assert typed.model is not None and typed.shape is not None
    options = AuditOptions.of(
        recording="",
        model=typed.model,
        shape=parse_shape(typed.shape),
        mean=parse_numbers("--mean", typed.mean),
        std=parse_numbers("--std", typed.std),
        attacks=(parse_options(typed.name, typed.option),),
        seed=typed.seed,
        **images,
    )
    run = AttackRun(options.attacks[0], options.seed)
    return Update(observation, granted, run, partial(describe_pair, observation, granted, options))
