"""One attack on one observation of a run or an audit, written down as a run of its own: its tables, and the files that
pictures and page are made from. Its scores are those that the run itself would have given."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacks import InputError, Knowledge
from simulator.audit.plan import AuditOptions, AuditPlan
from simulator.errors import one_line
from simulator.evaluation.job import Job, JobResult, Setting, finish_job
from simulator.evaluation.truth import Attacked
from simulator.results.inside import inside
from simulator.results.keys import RecordedObservation
from simulator.results.ledger import Ledger
from simulator.results.run import AUDIT, DESCRIPTION, Run
from simulator.results.storage import CellStore
from simulator.run.description import describe_scenario, surroundings
from simulator.run.folder import claimed_folder
from simulator.scenario.sections import AttackConfig

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
    store.save_observation(replace(recorded, pairs=pairs), granted)
    if source.truth.exists():  # what clients trained on instead
        store.truth.mkdir(exist_ok=True)
        for path in source.truth.iterdir():
            shutil.copy(inside(source.path, path), store.truth)
