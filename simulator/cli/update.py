"""The commands on one update: attack, and member and diagnose, which look at it without attacking it."""

from functools import partial

import pandas as pd
import torch

from attacks import ATTACKS, InputError
from attacks.calibration import Calibrated
from attacks.gradient_membership import tell_members
from attacks.interface.errors import counted
from attacks.scoring.images import Distinct
from attacks.update.spectrum import infer_image_count
from simulator.audit.plan import AuditOptions, doubt_trained
from simulator.cli.commands import AttackCommand, DiagnoseCommand, MemberCommand
from simulator.cli.finish import finish_run
from simulator.cli.inputs import observe, parse_numbers, parse_options, parse_shape
from simulator.cli.output import CommandResult, out, records, say, show_warnings
from simulator.evaluation import candidate_images
from simulator.evaluation.attack_run import AttackRun
from simulator.evaluation.image_files import read_truth
from simulator.results.disk import check_out, make_out, read_json, write_atomically
from simulator.results.keys import ObservationKey
from simulator.run.display import loss_bar, step_bar
from simulator.tools import diagnosis
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
        error = attack_update(update, folder, typed.in_pixels, typed.timeout, loss_bar(report, typed.name))
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


def member(typed: MemberCommand) -> CommandResult:
    check_out(typed.out_dir)
    observation, knowledge, _ = observe(typed)
    given, shape = {"candidates": typed.candidates, "public images": typed.public}, observation.input_shape
    files = [read_truth(path, shape, name, typed.in_pixels) for name, path in given.items() if path is not None]
    different, left_out = Distinct.among(files[0].images), ""
    if len(files) > 1:
        files[1], left_out = candidate_images.without_candidates(files[1], files[0])
    images = [file.images for file in files]
    if typed.in_pixels:
        images = [candidate_images.to_input_space(part, observation, knowledge) for part in images]
    found = tell_members(observation, knowledge, torch.cat(images), candidate_images.labels_of(files))
    residual, *outsiders = found.residual.split([len(part) for part in images])
    scale = candidate_images.scale_warning(images[0], observation)
    untold = None if typed.in_pixels else candidate_images.untold_warning(images[0], observation)
    warnings = (*found.warnings, *filter(None, [scale, untold, left_out]))
    show_warnings(warnings)
    table = typed.out_dir / "membership.csv"
    make_out(typed.out_dir)
    once = residual[different.first]
    calibrated = Calibrated.of(once, *outsiders) if outsiders else None
    write_atomically(table, candidate_images.membership_table(residual, calibrated, different))
    count = infer_image_count(observation)
    clear = count is not None and count.has_spectral_gap
    spans = candidate_images.spans_images(observation)
    said = candidate_images.membership_words(once, next(iter(outsiders), None), found.num_private, spans)
    for sentence in said:
        say(sentence)
    guess = "" if clear or knowledge.num_private else " (a guess)"
    by = f"{found.num_private} private images{guess}" if found.num_private else "told by the gradients they would send"
    copies = f" ({len(once)} different)" if len(once) < len(residual) else ""
    out.print(f"{counted(len(residual), 'candidate')}{copies}, {by}: {table}")
    facts = {"num_private": found.num_private, "warnings": warnings, "said": said}
    return CommandResult({**facts, "candidates": records(pd.read_csv(table))})


def diagnose(typed: DiagnoseCommand) -> CommandResult:
    check_out(typed.out_dir)
    if typed.evaluator and (typed.run is None or typed.images is not None):
        raise InputError("--evaluator measures on the private images of a run: give --run and no --images")
    observation, knowledge, record = observe(typed)
    seed = record.seed(typed.cell) if record is not None else 0
    view = "evaluator" if typed.evaluator else "adversary"
    if typed.evaluator and record is not None:
        inputs, source = diagnosis.private_images(record, observation, typed.cell), "the private ones"
    else:
        inputs, source = diagnosis.adversary_images(typed.images, observation, knowledge, typed.in_pixels)
    found = diagnosis.measure_regime(observation, inputs, typed.evaluator, seed)
    scale = candidate_images.scale_warning(inputs, observation)
    untold = None if typed.in_pixels else candidate_images.untold_warning(inputs, observation)
    show_warnings(tuple(filter(None, [scale, untold])))
    own = None if typed.evaluator else diagnosis.own_images(observation, inputs)
    diagnosis.write_diagnosis(typed.out_dir, found, view, source, own)
    say(f"{diagnosis.VIEWS[view]}: {found.on_images.images} images, {source}")
    for table in diagnosis.diagnosis_tables(found):
        out.print(table)
    say(found.verdict)
    said = diagnosis.advice(observation, knowledge, found)
    if not typed.evaluator and found.update.delta_linf > 0:
        said = [diagnosis.whose_images(own, len(inputs), found), *said]
    for line in said:
        say(line)
    say(f"written: {typed.out_dir / 'diagnose.json'}")
    return CommandResult({**read_json(typed.out_dir / "diagnose.json"), "said": said})
