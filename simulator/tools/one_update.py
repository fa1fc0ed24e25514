"""One attack on one update, written down as an audit, or a run, of this observation alone.

Two checkpoints are a recording of one client in one round. An observation of a run or an audit is attacked once more,
and scored as the run has it. The folder holds `reconstructions.npz`, `facts.json` with what was measured and
`constants.json` with the tuned constants that took part, the tables of a run, and what pictures and page are made from.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.base import Progress
from attacks.interface.errors import one_line
from clients.config import ModelConfig
from clients.models.factory import outputs_of
from simulator.audit.plan import IMAGES, AuditOptions, AuditPlan
from simulator.audit.recording import CONTENTS, RecordedRound, Recording, RecordingContents, SeenClient
from simulator.evaluation.attack_run import AttackRun
from simulator.evaluation.job import Job, JobResult, Setting, filed, finished
from simulator.evaluation.truth import Attacked
from simulator.results.disk import inside, make_out
from simulator.results.formats import write_json, write_model
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.ledger import Ledger
from simulator.results.storage import Architecture, CellStore
from simulator.run.run_folder import claimed_folder, describe_scenario, surroundings
from simulator.rundir.run import AUDIT, DESCRIPTION, Run
from simulator.scenario.sections import AttackConfig

FACTS = "facts.json"  # of whatever `fedspill attack` wrote
CONSTANTS = "constants.json"  # beside it, where the attack has tuned constants
RECORDING = "recording"  # below the folder of an attack on two checkpoints
KEY = ObservationKey(1, 0, "server")  # of their observation


Described = tuple[str, dict[str, Any], Setting]
"""The description of an attack in its folder: the name of its file, its content, and the setting for the score."""


class ObservationSource(NamedTuple):
    """Where an observation is from.

    architecture: of its network.
    store: its checkpoints and distilled images.
    """

    recorded: RecordedObservation
    architecture: Architecture
    store: CellStore


@dataclass(frozen=True)
class Update:
    """An update, and the attack on it.

    granted: the adversary's knowledge, whatever the attack.
    describe: describes the attack in a folder, given by its full path.
    """

    observation: Observation
    granted: Knowledge
    attack: AttackRun
    describe: Callable[[Path], tuple[Described, ObservationSource]]


def update_of_pair(observation: Observation, granted: Knowledge, options: AuditOptions) -> Update:
    """Return the update that two checkpoints show. options: of an audit of it, with one attack."""

    def describe(out: Path) -> tuple[Described, ObservationSource]:
        recording = write_recording(out / RECORDING, observation, granted)
        asked = replace(options, recording=str(recording.path))
        plan = AuditPlan(asked, recording, observation.model, options.attacks, (KEY,), out)
        (outputs,) = outputs_of(plan.model, options.model, options.shape)
        network = ModelConfig(name=options.model)
        architecture = Architecture(model=network, shape=options.shape, outputs=outputs, seed=options.seed)
        return _audit(plan), ObservationSource(recording.recorded(KEY), architecture, recording)

    return Update(observation, granted, AttackRun(options.attacks[0], options.seed), describe)


def update_of_run(
    record: Run, cell: str, observation: Observation, granted: Knowledge, attack: str | AttackConfig
) -> Update:
    """Return an update that a run or an audit recorded. cell: of `record`, that the observation is of."""
    key = ObservationKey.of(vars(observation))
    run, store = record.attack_run(attack, key, cell), record.store(cell)

    def describe(out: Path) -> tuple[Described, ObservationSource]:
        source = ObservationSource(store.recorded(key), store.architecture(), store)
        if record.is_audit:
            return _audit_again(record, key, run.config, out), source
        of = record.cells[cell]
        adversary = of.scenario.adversary.model_copy(update={"attacks": [run.config]})
        content = describe_scenario(of.scenario.model_copy(update={"adversary": adversary}))
        return (DESCRIPTION, content, replace(Setting.of(of), cell="", swept={})), source

    return Update(observation, granted, run, describe)


def check_replaceable(out: Path) -> None:
    """Raise InputError where `out` holds a run or an audit, whose tables an attack on one update would replace."""
    if any((out / name).exists() for name in (DESCRIPTION, AUDIT)) and not (out / FACTS).exists():
        raise InputError(f"{str(out)!r} holds a run, which an attack on one update would replace: choose another --out")


def attack_update(update: Update, out: Path, pixels: bool, progress: Progress) -> Reconstruction:
    """Attack an update, and make `out` the run of this attack. Nothing is written where the attack cannot run.

    pixels: `reconstructions.npz` has images in [0, 1], as a run stores them; otherwise in the model's own input space,
    since two checkpoints alone do not tell what was subtracted before training.
    """
    out = out.resolve()
    found = update.attack.run(update.observation, update.granted, progress)
    knowledge = update.attack.knowledge(update.granted)
    write_result(out, update.attack.config.name, found, knowledge, pixels)
    (file, content, setting), source = update.describe(out)
    for other in {DESCRIPTION, AUDIT} - {file}:  # of an earlier attack
        (out / other).unlink(missing_ok=True)
    with claimed_folder(out, file, content, overwrite=True):
        recorded = _write_observation(CellStore(out), source, update.granted)
        job, ledger = Job(setting, out, recorded.key, update.attack.config), Ledger(out)
        result = _scored(job, Attacked(recorded, update.observation, knowledge, found), update.granted)
        ledger.add(job.name, **result._asdict())
        ledger.mark_done(job.name)
        ledger.write_tables()
    return found


def write_result(out: Path, attack: str, found: Reconstruction, knowledge: Knowledge, pixels: bool) -> None:
    """Write reconstructions.npz, facts.json and constants.json. pixels: as `attack_update` has it."""
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
        **found.measured,
    }
    write_json(out / FACTS, facts)
    write_json(out / CONSTANTS, found.constants)


def _scored(job: Job, attacked: Attacked, granted: Knowledge) -> JobResult:
    """Score and store what was found; without scores, and with a remark, where the private images cannot be read."""
    distilled = partial(CellStore(job.root).load_distilled, job.key.round)
    try:
        return filed(job, finished(job, attacked, granted, distilled))
    except (InputError, OSError) as error:
        blind = replace(job, setting=replace(job.setting, truth=None))
        result = filed(blind, finished(blind, attacked, granted, distilled))
        result.leakage[0]["detail"] += f"; the private images cannot be read ({one_line(error)})"
        return result


def _write_observation(store: CellStore, source: ObservationSource, granted: Knowledge) -> RecordedObservation:
    """Write all that reports read of an observation, and return it; its checkpoints stay where they are."""
    net, folder = source.architecture, source.store.checkpoints.resolve()
    store.create(net.model, net.shape, net.outputs, net.seed)
    if granted.public_images is not None:
        store.save_public_images(granted.public_images)
    pairs = tuple((str(folder / initial), str(folder / final)) for initial, final in source.recorded.pairs)
    recorded = source.recorded.model_copy(update={"pairs": pairs})
    store.save_observation(recorded, granted)
    if source.store.truth.exists():  # what clients trained on instead
        store.truth.mkdir(exist_ok=True)
        for path in source.store.truth.iterdir():
            shutil.copy(inside(source.store.path, path), store.truth)
    return recorded


def write_recording(folder: Path, observation: Observation, knowledge: Knowledge) -> Recording:
    """Write what `fedspill.Record` would have written of a federation with one client and one round."""
    store, (initial, final) = CellStore(folder), observation.pairs[0]
    store.checkpoints.mkdir(parents=True, exist_ok=True)
    pair = (store.save_global(0, initial), store.save_client(1, 0, final))
    store.save_observation(RecordedObservation.of(KEY, (pair,), (0,), (0,)), knowledge)
    round = RecordedRound(round=1, clients=(0,))  # nobody reported how many images there are
    contents = RecordingContents(strategy="two checkpoints", clients={0: SeenClient(node=0)}, rounds=(round,))
    write_model(folder / CONTENTS, contents)
    return Recording(folder)


def _audit_again(record: Run, key: ObservationKey, attack: AttackConfig, out: Path) -> Described:
    asked = record.description["audit"]
    try:
        options = replace(
            AuditOptions.described_by(asked),
            attacks=(attack,),
            rounds=(key.round,),
            clients=(key.client,),
            threat_models=(key.threat_model,),
        )
        return _audit(AuditPlan.of(options, out))
    except InputError:  # the recording or the images have moved: the checkpoints that were named are enough to attack
        blind = asked | dict.fromkeys(IMAGES) | {"attacks": [attack.model_dump(mode="json")]}
        content = {"audit": blind, "digest": "", **surroundings()}
        return AUDIT, content, Setting(None, seed=int(asked["seed"]))


def _audit(plan: AuditPlan) -> Described:
    content = {"audit": plan.options.described(), "digest": plan.digest, **surroundings()}
    return AUDIT, content, plan.setting()
