"""One attack on one observation, and its score: the unit of work that Ray runs, resumes and replays."""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from attacks import InputError, Knowledge, Observation
from attacks.interface.errors import one_line
from attacks.scoring.images import score_images
from clients.time_limit import OutOfTime, time_limit
from simulator.evaluation.attack_run import AttackRun
from simulator.evaluation.candidate_images import GIVE_PUBLIC, NOT_TRIED, AuditCandidates, tell_candidates
from simulator.evaluation.evaluator import counts_of, evaluate, measure_alone, measure_update, nothing_of
from simulator.evaluation.progress_board import Reporter
from simulator.evaluation.truth import NO_TRUTH, Attacked, Measured, ScenarioTruth, Truth, TruthSource
from simulator.results.disk import make_out, reconstruction_file, write_bytes
from simulator.results.keys import ObservationKey, RecordedObservation, owner
from simulator.results.privacy import privacy_columns, privacy_notes
from simulator.results.storage import CellStore, ObservationMetadata, TensorsByName
from simulator.run_errors import DiskError, blamed_error
from simulator.scenario.scenario import Cell
from simulator.scenario.sections import AttackConfig


@dataclass(frozen=True)
class JobSettings:
    """What all jobs of a cell, or of an audit, have in common.

    truth: where to read it, None if unknown.
    cell, words: its name, and what people are told of it; "" without a sweep.
    swept: its columns.
    timeout: processor seconds that an attack may take, by the option `limit`.
    threads: of torch.
    candidates: for membership, None for none.
    """

    truth: TruthSource | None
    cell: str = ""
    words: str = ""
    swept: dict[str, Any] = field(default_factory=dict)
    defense: str = "none"
    seed: int = 0
    timeout: float = 3600.0
    threads: int = 1
    candidates: AuditCandidates | None = None
    limit: str = "adversary.timeout"

    @classmethod
    def of(cls, cell: Cell) -> "JobSettings":
        scenario = cell.scenario
        return cls(
            truth=ScenarioTruth(scenario),
            cell=cell.name,
            words=cell.words,
            swept=cell.swept,
            defense=scenario.defense,
            seed=scenario.seed,
            timeout=scenario.adversary.timeout,
            threads=scenario.engine.threads,
        )


@dataclass(frozen=True)
class Job:
    """One attack on one observation, small and picklable.

    root: the cell's folder on the machine that sends the job.
    of: the checksum of the observation, "" if nobody asks for it.
    """

    settings: JobSettings
    root: Path
    key: ObservationKey
    attack: AttackConfig
    of: str = ""

    @property
    def name(self) -> str:
        """The name of the job, unique in a run."""
        return f"{self.settings.cell or 'run'}_{self.key.name}_{self.attack.label}"

    @property
    def subject(self) -> str:
        """What is attacked by what, in words."""
        where = f"{self.settings.words}, " if self.settings.words else ""
        return f"{where}round {self.key.round}, {owner(self.key.client)}, {self.key.threat_model}, {self.attack.label}"

    @property
    def for_workers(self) -> "Job":
        """The job without the folder, which is on this machine."""
        return replace(self, root=Path())

    @property
    def timeout(self) -> float:
        return self.settings.timeout

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of every table that identify its rows within the cell."""
        return {**self.key.columns, "attack": self.attack.label}

    def files(self, members: Measured, attacked: Attacked | None = None) -> dict[str, bytes]:
        """Return the files of the candidates and of a reconstruction, by their paths below the cell's folder."""
        store, files = CellStore(Path()), {}
        if attacked is not None:
            files[str(store.reconstruction_path(self.key, self.attack.label))] = reconstruction_file(attacked.found)
        if members.table is not None:
            files[str(store.membership_path(self.key))] = members.table
        return files

    def row_key(self, target: str = "private") -> dict[str, Any]:
        """Return the columns that identify a row of the leakage table. target: the images it is scored against."""
        return {**self.columns, "defense": self.settings.defense, "seed": self.settings.seed, "target": target}


class JobResult(NamedTuple):
    """The rows of a job, under the names of their tables.

    leakage: one for each target that it is scored against.
    """

    leakage: list[dict[str, Any]]
    samples: list[dict[str, Any]]


Distilled = Callable[[Sequence[int]], Tensor | None]
"""Returns the images that these clients trained on instead of their own; None if one did not distill."""


class JobOutput(NamedTuple):
    """What a worker returns.

    files: to be written, by their paths below the cell's folder.
    """

    result: JobResult
    files: Mapping[str, bytes]


def run_job(job: Job, reporter: Reporter | None = None) -> JobResult:
    """Attack, store and score in this process. A fault becomes a row with its status and reason; never raise."""
    start, recorded, reporter = time.perf_counter(), None, reporter or Reporter()
    try:
        metadata = ObservationMetadata.read(store := CellStore(job.root), job.key)
        recorded = metadata.recorded
        tensors = {label: read() for label, (_, read) in metadata.tensor_files(store).items()}
    except Exception as error:
        reporter.error = error
        return error_result(job, error, start, recorded)
    return write_files(job, attack(job, metadata, tensors, reporter))


def attack(job: Job, metadata: ObservationMetadata, tensors: TensorsByName, reporter: Reporter) -> JobOutput:
    """Attack an observation and score the result, without any file of the run. A fault becomes a row; never raise."""
    start, told = time.perf_counter(), ""
    reporter.heartbeat()
    try:
        facts = metadata.recorded.defense_facts if job.attack.adaptive else {}
        run = AttackRun(job.attack, job.settings.seed, job.settings.threads, facts)
        observation, granted = metadata.observation(tensors), metadata.granted(tensors)
        knowledge = run.knowledge(granted)
        told = json.dumps(knowledge.given())
        with time_limit(job.timeout, heartbeat=reporter.heartbeat_from_handler):
            found = run.run(observation, granted, reporter.progress)
        reporter.heartbeat()  # scoring has time of its own
        attacked = Attacked(metadata.recorded, observation, knowledge, found)
        with time_limit(job.timeout, heartbeat=reporter.heartbeat_from_handler):
            return score_attack(job, attacked, granted, partial(metadata.distilled_images, tensors))
    except (Exception, SystemExit) as error:
        reporter.error = error
        aside = Measured({}, [])
        with contextlib.suppress(Exception), time_limit(job.timeout, heartbeat=reporter.heartbeat_from_handler):
            aside = _aside(job, metadata.recorded, metadata.observation(tensors), metadata.granted(tensors))
        return JobOutput(error_result(job, error, start, metadata.recorded, told, aside), job.files(aside))


def error_result(
    job: Job,
    error: BaseException,
    start: float,
    recorded: RecordedObservation | None,
    told: str = "",
    aside: Measured = Measured({}, []),
) -> JobResult:
    """Return the row of a job that an exception ended. start: of the job, by `time.perf_counter`. told: its knowledge,
    as JSON. aside: what the update tells without the attack."""
    if isinstance(error, InputError) and error.in_scenario and job.settings.limit == JobSettings.limit:
        error = InputError(error.in_scenario)
    status, detail = "failed", blamed_error(error)
    if isinstance(error, OutOfTime):
        within = f"no result within {job.settings.limit} = {job.timeout:g} processor seconds"
        status, detail = "timeout", ": ".join(filter(None, [within, str(error)]))
    elif isinstance(error, InputError) and job.attack.optional:
        status, detail = "skipped", one_line(error)
    privacy, notes = ({}, []) if recorded is None else _privacy(recorded)
    spent = {"knowledge": told, "seconds": round(time.perf_counter() - start, 3)}
    detail = "; ".join([detail, *notes, *aside.notes])
    return _result(job, {"private": {"status": status, "detail": detail, **spent, **privacy, **aside.columns}})


def write_files(job: Job, output: JobOutput) -> JobResult:
    """Write the files of a result; a row whose files cannot be written keeps its scores, and says so."""
    try:
        for name, content in output.files.items():
            make_out((job.root / name).parent)
            write_bytes(job.root / name, content)
    except (DiskError, InputError) as error:  # scores need no disk
        note = one_line(f"its images are not kept: {error}")
        rows = [{**row, "detail": "; ".join(filter(None, [row["detail"], note]))} for row in output.result.leakage]
        return output.result._replace(leakage=rows)
    return output.result


def score_attack(job: Job, attacked: Attacked, granted: Knowledge, distilled: Distilled) -> JobOutput:
    """Score the result of an attack. granted: the knowledge of the adversary, whatever the attack."""
    members = _candidates(job, attacked.observation, granted)
    found, (privacy, notes) = attacked.found, _privacy(attacked.recorded)
    by_target = score(job, attacked, distilled)
    vouched = {"num_vouched": len(found.images)} if job.attack.make().vouches else {}
    by_target["private"].columns.update(members.columns | vouched)
    by_target["private"].notes.extend(note for note in members.notes if note not in found.warnings)
    rows = {}
    for target, scores in by_target.items():
        detail = one_line("; ".join([*found.warnings, *scores.notes, *notes]), most=10_000)
        told, seconds = json.dumps(attacked.knowledge.given()), round(found.seconds, 3)  # without scoring
        spent = {"knowledge": told, "seconds": seconds}
        rows[target] = scores.columns | {"status": "ok", "detail": detail} | spent | privacy
    samples = [sample for scores in by_target.values() for sample in scores.samples]
    return JobOutput(_result(job, rows, samples), job.files(members, attacked))


def _privacy(recorded: RecordedObservation) -> tuple[dict[str, Any], list[str]]:
    """Return (the columns of differential privacy, remarks on it for `detail`)."""
    of = recorded.guarantees, recorded.adversary
    return privacy_columns(*of), privacy_notes(*of)


def _candidates(job: Job, observation: Observation, granted: Knowledge) -> Measured:
    """Tell which of the candidates are members, if the job has some."""
    source = job.settings.candidates
    return Measured({}, []) if source is None else tell_candidates(source, observation, granted)


def _aside(job: Job, recorded: RecordedObservation, observation: Observation, granted: Knowledge) -> Measured:
    """Return what an update tells whatever became of the attack: which candidates and private images are members, how
    many images each class has, and how many it has room for."""
    members = _candidates(job, observation, granted)
    with contextlib.suppress(Exception):  # private images that cannot be read cost no candidates
        truth = _truth(job, Attacked(recorded, observation, granted, nothing_of(observation)))
        columns, notes = measure_alone(truth, observation, granted)
        return members._replace(columns=columns | members.columns, notes=[*members.notes, *notes])
    return members


def _truth(job: Job, attacked: Attacked) -> Truth | str:
    return NO_TRUTH if job.settings.truth is None else job.settings.truth.truth(attacked)


def score(job: Job, attacked: Attacked, distilled: Distilled) -> dict[str, Measured]:
    """Score by target: against the private images, and against the images that all clients trained on instead."""
    recorded, observation, knowledge, found = attacked
    truth = _truth(job, attacked)
    if isinstance(truth, str):
        told = {} if knowledge.num_private is None else {"num_private": knowledge.num_private}
        columns, notes = measure_update(observation, knowledge)
        if job.settings.candidates is None:
            notes = [NOT_TRIED if truth.startswith(NO_TRUTH) else GIVE_PUBLIC, *notes]
        return {"private": Measured(told | counts_of(observation, found) | columns, [truth, *notes])}
    by_target = {"private": evaluate(truth, observation, knowledge, found, job.row_key())}
    images, of_round = distilled(recorded.clients), distilled(recorded.round_clients)
    if images is not None and of_round is not None:
        near = score_images(truth.private, images, truth.pool)  # to the private ones, whatever the attack
        by_target["private"].columns["distilled_l2_median"] = float(np.median(near.l2))
        by_target["private"].columns["distilled_copies_fraction"] = float(near.recovered.mean())
        truth = replace(truth, private=images, pool=replace(truth.pool, private=of_round), labels=None)
        by_target["distilled"] = evaluate(truth, observation, knowledge, found, job.row_key("distilled"))
    return by_target


def empty_result(job: Job, reason: str, status: str = "failed", **columns: Any) -> JobResult:
    """Return the row of a job that gave no result, or was never started. columns: further ones of the row."""
    return _result(job, {"private": {"status": status, "detail": one_line(reason), **columns}})


def _result(job: Job, rows: dict[str, dict[str, Any]], samples: Iterable[dict[str, Any]] = ()) -> JobResult:
    """rows: columns of the leakage table, by target."""
    swept, adaptive = job.settings.swept, {"adaptive": job.attack.adaptive}
    leakage = [{**job.row_key(target), **swept, **adaptive, **columns} for target, columns in rows.items()]
    return JobResult(leakage, [{**sample, **swept} for sample in samples])
