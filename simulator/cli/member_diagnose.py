"""The commands that look at one update without attacking it: member, diagnose."""

import pandas as pd
import torch

from attacks import InputError
from attacks.calibration import Calibrated
from attacks.gradient_membership import tell_members
from attacks.interface.errors import counted
from attacks.scoring.images import Distinct
from attacks.update.spectrum import infer_image_count
from simulator.cli.commands import DiagnoseCommand, MemberCommand
from simulator.cli.inputs import observe
from simulator.cli.output import CommandResult, out, records, say, show_warnings
from simulator.evaluation import candidate_images
from simulator.evaluation.image_files import read_truth
from simulator.results.disk import check_out, make_out, write_atomically
from simulator.results.formats import read_json
from simulator.tools import diagnosis


def member(typed: MemberCommand) -> CommandResult:
    check_out(typed.out_dir)
    given = {"candidates": typed.candidates, "public images": typed.public}
    files = [read_truth(path, None, name, typed.in_pixels) for name, path in given.items() if path is not None]
    observation, knowledge, _ = observe(typed)
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
    said = candidate_images.membership_words(once, next(iter(outsiders), None), found.num_private, clear)
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
    own = None if typed.evaluator else diagnosis.own_images(observation, inputs, found)
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
