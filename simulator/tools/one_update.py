"""One attack on one update, written down as an audit, or a run, of this observation alone.

Two checkpoints are a recording of one client in one round. An observation of a run or an audit is attacked once more,
and scored as the run has it. The job is that of an audit, with three more files: `reconstructions.npz`, `facts.json`
with what was measured and `constants.json` with the tuned constants that took part.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attacks import InputError, Knowledge, Observation
from attacks.base import Progress
from attacks.interface.torch_tools import choose_device
from clients.config import ModelConfig
from clients.models.factory import count_scores
from simulator.audit.plan import IMAGES, AuditOptions, AuditPlan
from simulator.audit.recording import CONTENTS, RecordedRound, Recording, RecordingContents, SeenClient
from simulator.evaluation.attack_run import AttackRun
from simulator.evaluation.job import Job, JobSettings, run_job
from simulator.evaluation.progress_board import Reporter
from simulator.evaluation.truth import Attacked, Measured, ScenarioTruth
from simulator.results.disk import inside, json_text, reconstruction_file, write_atomically, write_model
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.ledger import Ledger
from simulator.results.storage import CellStore
from simulator.run.run_folder import claimed_folder, describe_scenario, surroundings
from simulator.run_errors import RunError
from simulator.rundir.run import AUDIT, DESCRIPTION, Run
from simulator.scenario.sections import AttackConfig

RECONSTRUCTIONS = "reconstructions.npz"
FACTS = "facts.json"  # of whatever `fedspill attack` wrote
CONSTANTS = "constants.json"  # beside it, where the attack has tuned constants
RECORDING = "recording"  # below the folder of an attack on two checkpoints
KEY = ObservationKey(1, 0, "server")  # of their observation


Described = tuple[str, dict[str, Any], JobSettings, CellStore]
"""An attack as its folder has it: the name and content of the file that describes it, the settings for the score, and
where its observation and checkpoints are."""


@dataclass(frozen=True)
class Update:
    """An update, and the attack on it.

    granted: the adversary's knowledge, whatever the attack.
    describe: describes the attack in a folder, given by its full path.
    """

    observation: Observation
    granted: Knowledge
    attack: AttackRun
    describe: Callable[[Path], Described]


def describe_pair(observation: Observation, granted: Knowledge, options: AuditOptions, out: Path) -> Described:
    """Describe an attack on two checkpoints as an audit of their recording, which is written into `out`. options: of
    that audit, with one attack."""
    recording = write_recording(out / RECORDING, observation, granted, options)
    plan = AuditPlan.of(replace(options, recording=str(recording.path)), out)
    content = {"audit": plan.options.described(), "digest": plan.digest, **surroundings()}
    return AUDIT, content, plan.settings(), recording


def describe_again(record: Run, cell: str, key: ObservationKey, attack: AttackConfig, out: Path) -> Described:
    """Describe an attack on an update that a run or an audit has recorded. cell: of `record`."""
    if record.is_audit:
        return _audit_again(record, key, attack, out)
    of = record.cells[cell]
    adversary = of.scenario.adversary.model_copy(update={"attacks": [attack]})
    content = describe_scenario(of.scenario.model_copy(update={"adversary": adversary}))
    settings = replace(JobSettings.of(of), truth=ScenarioTruth(of.scenario, old=True), cell="", swept={})
    return DESCRIPTION, content, settings, record.store(cell)


def check_replaceable(out: Path) -> None:
    """Raise InputError where `out` holds a run or an audit, whose tables an attack on one update would replace."""
    if any((out / name).exists() for name in (DESCRIPTION, AUDIT)) and not (out / FACTS).exists():
        raise InputError(f"{str(out)!r} holds a run, which an attack on one update would replace: choose another --out")


@dataclass(frozen=True, kw_only=True)
class UpdateJob(Job):
    """A job with files of its own.

    pixels: whether `reconstructions.npz` has images in [0, 1], as a run stores them; otherwise they are in the model's
        own input space, since two checkpoints alone do not tell what was subtracted before training.
    """

    pixels: bool

    def files(self, members: Measured, attacked: Attacked | None = None) -> dict[str, bytes]:
        files = super().files(members, attacked)
        if attacked is None:
            return files
        found = attacked.found
        facts = {
            "attack": self.attack.name,
            "num_inferred": found.num_inferred,
            "num_reconstructed": len(found.images),
            "num_held": len(found.held_pixels()),
            "relative_residual": found.relative_residual,
            "pixel_mean": found.pixel_mean,
            "knowledge": attacked.knowledge.given(),
            "seconds": round(found.seconds, 3),
            "warnings": found.warnings,
            **found.measured,
        }
        shown = found if self.pixels else replace(found, pixel_mean=(), pixel_std=())
        written = {FACTS: json_text(facts).encode(), CONSTANTS: json_text(found.constants).encode()}
        return files | written | {RECONSTRUCTIONS: reconstruction_file(shown)}


def attack_update(update: Update, out: Path, pixels: bool, timeout: float, progress: Progress) -> BaseException | None:
    """Attack an update, and make `out` the run of this attack. Return the exception that ended it, None if none did: it
    has a row, as in a run. Raise InputError, with nothing written, where the attack cannot take the network.

    pixels: as `UpdateJob` has it. timeout: processor seconds that the attack may take.
    """
    config, key, out = update.attack.config, ObservationKey.of(vars(update.observation)), out.resolve()
    attack = config.make()
    attack.check(update.observation, update.attack.knowledge(update.granted))
    choose_device(getattr(attack, "device", "cpu"))
    file, content, settings, source = update.describe(out)
    for other in {DESCRIPTION, AUDIT, RECONSTRUCTIONS, CONSTANTS} - {file}:  # of an earlier attack
        (out / other).unlink(missing_ok=True)
    with claimed_folder(out, file, content, overwrite=True):
        write_atomically(out / FACTS, json_text({"attack": config.name}))  # until it ends, and if it fails
        _write_observation(CellStore(out), source, key, update.granted)
        job = UpdateJob(replace(settings, timeout=timeout, limit="--timeout"), out, key, config, pixels=pixels)
        ledger, reporter = Ledger(out), Reporter()
        reporter.show = progress
        result = run_job(job, reporter)
        ledger.add(job.name, **result._asdict())
        ledger.mark_done(job.name)
        ledger.write_tables()
    row = result.leakage[0]
    return RunError(row["detail"]) if row["status"] == "timeout" else reporter.error


def _write_observation(store: CellStore, source: CellStore, key: ObservationKey, granted: Knowledge) -> None:
    """Write all that a job reads of an observation; its checkpoints stay where they are."""
    net = source.architecture()
    store.create(net.model, net.shape, net.outputs, net.seed)
    if granted.public_images is not None:
        store.save_public_images(granted.public_images)
    store.save_observation(source.recorded(key), granted, source.checkpoints)
    if source.truth.exists():  # what clients trained on instead
        store.truth.mkdir(exist_ok=True)
        for path in source.truth.iterdir():
            shutil.copy(inside(source.path, path), store.truth)


def write_recording(folder: Path, observation: Observation, knowledge: Knowledge, options: AuditOptions) -> Recording:
    """Write what `fedspill.Record` would have written of a federation with one client and one round, and the
    architecture."""
    store, (initial, final), shape = CellStore(folder), observation.pairs[0], options.shape
    outputs = count_scores(observation.model, options.model, shape)
    store.create(ModelConfig(name=options.model), shape, outputs, options.seed)
    returned = {name: tensor for name, tensor in final.items() if name not in observation.kept}
    pair = (store.save_global(0, initial), store.save_client(1, 0, returned))
    store.save_observation(RecordedObservation.of(KEY, (pair,), (0,), (0,)), knowledge)
    round = RecordedRound(round=1, clients=(0,))  # nobody reported how many images there are
    contents = RecordingContents(strategy="two checkpoints", clients={0: SeenClient(node=0)}, rounds=(round,))
    write_model(folder / CONTENTS, contents)
    return Recording(folder)


def _audit_again(record: Run, key: ObservationKey, attack: AttackConfig, out: Path) -> Described:
    asked = record.description["audit"] | {"attacks": [attack.model_dump(mode="json")]}
    asked |= {f"{name}s": [value] for name, value in key.columns.items()}
    try:
        plan = AuditPlan.of(AuditOptions.described_by(asked), out)
        digest, settings = plan.digest, plan.settings()
    except InputError:  # the recording or the images have moved: the checkpoints that were named are enough to attack
        asked |= dict.fromkeys(IMAGES)
        digest, settings = "", JobSettings(None, seed=int(asked["seed"]))
    return AUDIT, {"audit": asked, "digest": digest, **surroundings()}, settings, record.store()
