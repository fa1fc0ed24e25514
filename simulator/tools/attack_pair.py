"""An attack outside a run, on any two checkpoints; it needs no private image.

One attack on one observation of a run or an audit, written down as a run of its own: its tables, and the files that
pictures and page are made from. Its scores are those that the run itself would have given.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.interface.code_trust import allow_code
from attacks.interface.errors import nearest
from clients.config import ModelConfig
from clients.models.checkpoint import read_checkpoint
from clients.models.factory import construct, outputs_of
from simulator.audit.plan import AuditOptions, AuditPlan, per_channel
from simulator.errors import one_line
from simulator.evaluation.image_files import Shape
from simulator.evaluation.job import Job, JobResult, Setting, finish_job
from simulator.evaluation.truth import Attacked
from simulator.results.disk import inside, make_out
from simulator.results.formats import write_json
from simulator.results.keys import RecordedObservation
from simulator.results.knowledge_fields import make_knowledge
from simulator.results.ledger import Ledger
from simulator.results.storage import CellStore
from simulator.run.folder import claimed_folder, describe_scenario, surroundings
from simulator.rundir.run import AUDIT, DESCRIPTION, Run
from simulator.scenario.sections import AttackConfig
from simulator.scenario.yaml_source import parse_value


def observe_pair(model: str | None, initial: Path | None, final: Path | None, shape: str | None) -> Observation:
    """An observation of two checkpoints, of any format that `read_checkpoint` knows.

    model: package.module:factory or FILE.py:factory. shape: "1,28,28", of an input image.
    """
    if model is None or initial is None or final is None or shape is None:
        flags = {"--model": model, "--initial": initial, "--final": final, "--shape": shape}
        missing = ", ".join(flag for flag, value in flags.items() if value is None)
        raise InputError(f"which update? Give --run RUN, or {missing} beside what was given")
    size = parse_shape(shape)
    allow_code(model)  # it was typed
    module = construct(ModelConfig(name=model), size, outputs=0)
    outputs_of(module, model, size)
    like = module.state_dict()
    pair = read_checkpoint(initial, like), read_checkpoint(final, like)
    return Observation(module, (pair,), size, round=1, client=0)


def normalized(knowledge: Knowledge, mean: str | None, std: str | None, shape: Shape) -> Knowledge:
    """The knowledge with what --mean and --std say; what --know says of the same comes first."""
    means, stds = parse_numbers("--mean", mean), parse_numbers("--std", std)
    if not means and not stds:
        return knowledge
    return replace(
        knowledge,
        pixel_mean=knowledge.pixel_mean or per_channel(means or (0.0,), shape),
        pixel_std=knowledge.pixel_std or per_channel(stds, shape) or None,
        pixel_range=knowledge.pixel_range or (0.0, 1.0),
    )


def parse_numbers(option: str, text: str | None) -> tuple[float, ...]:
    """`0.5` or `0.4914,0.4822,0.4465`; nothing where the option is not given."""
    try:
        return tuple(float(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        raise InputError(f"{option} {text!r}: write one number, or one for each channel, e.g. 0.49,0.48,0.45") from None


def parse_shape(text: str) -> tuple[int, int, int]:
    """(1, 28, 28) of the text 1,28,28."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--shape {text!r}: write channels,height,width, e.g. 1,28,28")
    return int(parts[0]), int(parts[1]), int(parts[2])


def parse_knowledge(items: list[str]) -> Knowledge:
    """Knowledge from --know key=value items."""
    return make_knowledge(parse_fields(items))


def parse_fields(items: list[str]) -> dict[str, Any]:
    """Fields of knowledge from --know key=value items. Values are YAML; "0.4,0.5" is a list as "[0.4, 0.5]" is."""
    for item in items:
        key, equals, _ = item.partition("=")
        if not equals or key not in Knowledge.names():
            raise InputError(f"--know {item!r}: write FIELD=VALUE{nearest(key, Knowledge.names())}")
    listed = re.compile(r"([^=]+)=(-?[\d.][^\[\],]*(?:,[^\[\],]+)+)")
    return _parse([listed.sub(r"\1=[\2]", item) for item in items])


def parse_options(name: str, items: list[str]) -> AttackConfig:
    """The attack with its --option key=value items."""
    for item in items:
        if "=" not in item:
            raise InputError(f"--option {item!r}: write NAME=VALUE")
    config = AttackConfig.model_construct(name=name, label=name, options=_parse(items))
    config.make()
    return config


def _parse(items: list[str]) -> dict[str, Any]:
    """key=value items, whose values are YAML."""
    return {key: parse_value(text) for key, _, text in (item.partition("=") for item in items)}


def write_result(out: Path, attack: str, found: Reconstruction, knowledge: Knowledge, pixels: bool) -> None:
    """reconstructions.npz and facts.json.

    pixels: images in [0, 1], as a run stores them; otherwise in the model's own input space, since two checkpoints
    alone do not tell what was subtracted before training.
    """
    make_out(out)
    images, held = found.images, found.images[:0] if found.held is None else found.held
    if pixels:
        images, held = found.pixels(), found.held_pixels()
    arrays = {"images": images, "residual": found.residual, "held": held}
    if found.features is not None:
        arrays["features"] = found.features
    np.savez_compressed(
        out / "reconstructions.npz", allow_pickle=False, **{name: array.numpy() for name, array in arrays.items()}
    )
    facts = {
        "attack": attack,
        "num_inferred": found.num_inferred,
        "num_reconstructed": len(found.images),
        "num_held": len(held),
        "relative_residual": found.relative_residual,
        "pixel_mean": found.pixel_mean,
        "knowledge": knowledge.given(),
        "seconds": round(found.seconds, 3),
        "warnings": found.warnings,
        **found.facts,
    }
    write_json(out / "facts.json", facts)


IMAGES = ("truth", "public", "candidates")  # that an audit was given
FACTS = "facts.json"  # of whatever `fedspill attack` wrote


def is_replaceable(out: Path) -> None:
    """InputError where `out` holds a run or an audit, whose tables an attack on one update would replace."""
    if any((out / name).exists() for name in (DESCRIPTION, AUDIT)) and not (out / FACTS).exists():
        raise InputError(f"{str(out)!r} holds a run, which an attack on one update would replace: choose another --out")


def write_replayed(
    out: Path, record: Run, cell: str, attack: AttackConfig, granted: Knowledge, attacked: Attacked
) -> None:
    """Make `out` the run of one attack. cell: of `record`, that the observation is of. granted: what its adversary was
    told, whatever the attack. Where the private images can no longer be read there are no scores, and a remark."""
    name, description, setting = _described(record, cell, attack, out)
    for other in {DESCRIPTION, AUDIT} - {name}:  # of an earlier attack
        (out / other).unlink(missing_ok=True)
    with claimed_folder(out, name, description, overwrite=True):
        _copy_observation(record.store(cell), CellStore(out), attacked.recorded, granted)
        job, ledger = Job(setting, out, attacked.recorded.key, attack), Ledger(out)
        ledger.add(job.name, **_finished(job, attacked)._asdict())
        ledger.mark_done(job.name)
        ledger.write_tables()


def _described(record: Run, cell: str, attack: AttackConfig, out: Path) -> tuple[str, dict[str, Any], Setting]:
    """(the description's file, what it says, how the attack is scored)."""
    if record.is_audit:
        return AUDIT, *_audit_described(record.description["audit"], attack, out)
    of = record.cells[cell]
    adversary = of.scenario.adversary.model_copy(update={"attacks": [attack]})
    scenario = of.scenario.model_copy(update={"adversary": adversary})
    return DESCRIPTION, describe_scenario(scenario), replace(Setting.of(of), cell="", swept={})


def _audit_described(asked: dict[str, Any], attack: AttackConfig, out: Path) -> tuple[dict[str, Any], Setting]:
    try:
        plan = AuditPlan.of(replace(AuditOptions.described_by(asked), attacks=(attack,)), out)
        return {"audit": plan.options.described(), "digest": plan.digest, **surroundings()}, plan.setting()
    except InputError:  # the recording or the images have moved: the checkpoints that were named are enough to attack
        blind = asked | dict.fromkeys(IMAGES) | {"attacks": [attack.model_dump(mode="json")]}
        return {"audit": blind, "digest": "", **surroundings()}, Setting(None, seed=int(asked["seed"]))


def _finished(job: Job, attacked: Attacked) -> JobResult:
    try:
        return finish_job(job, attacked)
    except (InputError, OSError) as error:
        blind = finish_job(replace(job, setting=replace(job.setting, truth=None)), attacked)
        blind.leakage[0]["detail"] += f"; the private images cannot be read ({one_line(str(error))})"
        return blind


def _copy_observation(source: CellStore, store: CellStore, recorded: RecordedObservation, granted: Knowledge) -> None:
    """All that reports read of it; checkpoints stay where they are."""
    folder = source.checkpoints.resolve()
    store.checkpoints.mkdir(exist_ok=True)
    store.reconstructions.mkdir(exist_ok=True)
    shutil.copy(source.architecture_path, store.checkpoints)
    if granted.public_images is not None:
        store.save_public_images(granted.public_images)
    pairs = tuple((str(folder / initial), str(folder / final)) for initial, final in recorded.pairs)
    store.save_observation(recorded.model_copy(update={"pairs": pairs}), granted)
    if source.truth.exists():  # what clients trained on instead
        store.truth.mkdir(exist_ok=True)
        for path in source.truth.iterdir():
            shutil.copy(inside(source.path, path), store.truth)
