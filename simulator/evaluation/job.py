"""One attack on one observation, and its score: the unit of work that Ray runs, resumes and replays."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from attacks import InputError
from attacks.scoring.images import score_images
from clients.time_limit import OutOfTime, time_limit
from simulator.adversary.attack_run import AttackRun
from simulator.errors import one_line, said_by
from simulator.evaluation.evaluator import Evaluation, evaluate, without_truth
from simulator.evaluation.progress_board import Reporter
from simulator.evaluation.truth import Attacked, ScenarioTruth, Truth, TruthSource
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.privacy import privacy_columns, privacy_notes
from simulator.results.storage import CellStore, save_reconstruction
from simulator.scenario.scenario import Cell
from simulator.scenario.sections import AttackConfig


@dataclass(frozen=True)
class Setting:
    """What the jobs of a cell, or of an audit, have in common.

    cell: its name, "" where there is no sweep. swept: its columns. truth: where to read it, None where nobody knows it.
    timeout: seconds that an attack may take. threads: of torch.
    """

    truth: TruthSource | None
    cell: str = ""
    swept: dict[str, Any] = field(default_factory=dict)
    defense: str = "none"
    seed: int = 0
    timeout: float = 3600.0
    threads: int = 1

    @classmethod
    def of(cls, cell: Cell) -> "Setting":
        scenario = cell.scenario
        return cls(
            truth=ScenarioTruth(scenario),
            cell=cell.name,
            swept=cell.swept,
            defense=scenario.defense,
            seed=scenario.seed,
            timeout=scenario.adversary.timeout,
            threads=scenario.engine.threads,
        )


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs to attack an observation and to score the result, small and picklable.

    root: of the cell's files.
    """

    setting: Setting
    root: Path
    key: ObservationKey
    attack: AttackConfig

    @property
    def name(self) -> str:
        """What tells this job from all others of a run."""
        return f"{self.setting.cell or 'run'}_{self.key.name}_{self.attack.label}"

    @property
    def timeout(self) -> float:
        return self.setting.timeout

    def row_key(self, target: str = "private") -> dict[str, Any]:
        """The columns that identify a row of the leakage table. target: which images it is scored against."""
        return {
            **self.key.columns,
            "attack": self.attack.label,
            "defense": self.setting.defense,
            "seed": self.setting.seed,
            "target": target,
        }


class JobResult(NamedTuple):
    """The rows of a job, under the names of their tables. leakage: one for each target that it is scored against."""

    leakage: list[dict[str, Any]]
    samples: list[dict[str, Any]]


def run_job(job: Job, reporter: Reporter | None = None) -> JobResult:
    """Attack, store and score. A fault becomes a row with its status and reason; nothing is raised."""
    reporter, start = reporter or Reporter(), time.perf_counter()
    reporter.alive()
    told = ""
    privacy: dict[str, Any] = {}
    notes: list[str] = []
    try:
        store = CellStore(job.root)
        recorded, (observation, granted) = store.recorded(job.key), store.load(job.key)
        privacy, notes = _privacy(recorded)
        facts = recorded.defense_facts if job.attack.adaptive else {}
        run = AttackRun(job.attack, job.setting.seed, job.setting.threads, facts)
        knowledge = run.knowledge(granted)
        told = json.dumps(knowledge.given())
        with time_limit(job.timeout):
            found = run.run(observation, granted, reporter.progress)
        reporter.alive()  # scoring has time of its own
        return finish_job(job, Attacked(recorded, observation, knowledge, found))
    except (Exception, SystemExit) as error:
        status, detail = "failed", said_by(error)
        if isinstance(error, OutOfTime):
            status, detail = "timeout", f"no result within adversary.timeout = {job.timeout:g} s"
        elif isinstance(error, InputError) and job.attack.optional:
            status, detail = "skipped", " ".join(str(error).split())
        spent = {"knowledge": told, "seconds": round(time.perf_counter() - start, 3)}
        return _result(job, {"private": {"status": status, "detail": "; ".join([detail, *notes]), **spent, **privacy}})


def finish_job(job: Job, attacked: Attacked) -> JobResult:
    """Store what an attack found, and score it."""
    found, (privacy, notes) = attacked.found, _privacy(attacked.recorded)
    save_reconstruction(CellStore(job.root).reconstruction_path(job.key, job.attack.label), found)
    rows, samples = {}, []
    for target, scores in score(job, attacked).items():
        detail = one_line("; ".join([*found.warnings, *scores.notes, *notes]), most=10_000)
        told, seconds = json.dumps(attacked.knowledge.given()), round(found.seconds, 3)  # without scoring
        spent = {"knowledge": told, "seconds": seconds}
        rows[target] = scores.columns | {"status": "ok", "detail": detail} | spent | privacy
        samples += scores.samples
    return _result(job, rows, samples)


def _privacy(recorded: RecordedObservation) -> tuple[dict[str, Any], list[str]]:
    """(columns of what differential privacy promises, what `detail` says of it)."""
    of = recorded.guarantees, recorded.adversary
    return privacy_columns(*of), privacy_notes(*of)


def score(job: Job, attacked: Attacked) -> dict[str, Evaluation]:
    """By target: against the private images, and against what all clients trained on instead, where they did."""
    store, round, source = CellStore(job.root), job.key.round, job.setting.truth
    recorded, observation, knowledge, found = attacked
    truth = None if source is None else source.truth(attacked)
    if truth is None:
        return {"private": without_truth(observation, knowledge, found)}
    scored = {"private": evaluate(truth, observation, knowledge, found, job.row_key())}
    distilled, of_round = (store.load_distilled(round, who) for who in (recorded.clients, recorded.round_clients))
    if distilled is not None and of_round is not None:
        scored["private"].columns.update(copied(truth, distilled))
        truth = replace(truth, private=distilled, pool=replace(truth.pool, private=of_round))
        scored["distilled"] = evaluate(truth, observation, knowledge, found, job.row_key("distilled"))
    return scored


def copied(truth: Truth, distilled: Tensor) -> dict[str, float]:
    """How near distilled images are to the private ones, whoever attacks: columns of the leakage table."""
    scores = score_images(truth.private, distilled, truth.pool)
    return {
        "distilled_l2_median": float(np.median(scores.l2)),
        "distilled_copies_fraction": float(scores.recovered.mean()),
    }


def lost(job: Job, reason: str, status: str = "failed", **columns: Any) -> JobResult:
    """The row of a job that gave no result, or was never started. columns: what is known of it all the same."""
    return _result(job, {"private": {"status": status, "detail": one_line(reason), **columns}})


def _result(job: Job, rows: dict[str, dict[str, Any]], samples: Iterable[dict[str, Any]] = ()) -> JobResult:
    """rows: columns of the leakage table, by target."""
    swept, adaptive = job.setting.swept, {"adaptive": job.attack.adaptive}
    leakage = [{**job.row_key(target), **swept, **adaptive, **columns} for target, columns in rows.items()]
    return JobResult(leakage, [{**sample, **swept} for sample in samples])
