"""One attack on one observation, and its score: the unit of work that Ray runs, resumes and replays."""

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attacks import Knowledge, Observation, Reconstruction
from simulator.adversary.attack_run import AttackRun
from simulator.evaluation.evaluator import Evaluation, evaluate
from simulator.evaluation.progress_board import Reporter
from simulator.evaluation.truth import Truth, TruthSource
from simulator.results.keys import ObservationKey
from simulator.results.schema import row_order
from simulator.results.storage import CellStore, save_reconstruction
from simulator.scenario.scenario import Cell
from simulator.scenario.sections import AttackConfig


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs to attack an observation and to score the result, small and picklable.

    cell, swept: the point of the sweep, and its columns. root: of the cell's files. defense: how tables call the chain.
    """

    cell: str
    swept: dict[str, Any]
    root: Path
    key: ObservationKey
    attack: AttackRun
    defense: str
    timeout: float
    truth: TruthSource

    @classmethod
    def of(cls, cell: Cell, root: Path, key: ObservationKey, attack: AttackConfig) -> "Job":
        scenario = cell.scenario
        return cls(
            cell=cell.name,
            swept=cell.swept,
            root=root,
            key=key,
            attack=AttackRun.of(attack, scenario),
            defense=scenario.defense,
            timeout=scenario.adversary.timeout,
            truth=TruthSource.of(scenario),
        )

    @property
    def name(self) -> str:
        """What tells this job from all others of a run."""
        return f"{self.cell or 'run'}_{self.key.name}_{self.attack.config.label}"

    def row_key(self, target: str = "private") -> dict[str, Any]:
        """The columns that identify a row of the leakage table. target: which images it is scored against."""
        return {
            **self.key.columns,
            "attack": self.attack.config.label,
            "defense": self.defense,
            "seed": self.attack.seed,
            "target": target,
        }


@dataclass(frozen=True)
class JobResult:
    """A row of the leakage table and its rows of the samples table.

    order: where they stand in the tables. more: the same attack scored against another target.
    """

    order: tuple[Any, ...]
    row: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)
    more: tuple["JobResult", ...] = ()


def run_job(job: Job, reporter: Reporter | None = None) -> JobResult:
    """Attack, store and score. A fault becomes a row with its status and reason; nothing is raised."""
    reporter, start = reporter or Reporter(), time.perf_counter()
    reporter.alive()
    knowledge: Knowledge | None = None
    try:
        store = CellStore(job.root)
        observation, granted = store.load(job.key)
        knowledge = job.attack.knowledge(granted)
        with time_limit(job.timeout):
            found = job.attack.run(observation, granted, reporter.progress)
        reporter.alive()  # scoring has time of its own
        save_reconstruction(store.reconstruction_path(job.key, job.attack.config.label), found)
        scored = score(job, observation, knowledge, found)
    except Exception as error:
        spent = {"knowledge": _as_text(knowledge), "seconds": round(time.perf_counter() - start, 3)}
        return _result(job, _fault(job, error) | spent)
    spent = {"knowledge": _as_text(knowledge), "seconds": round(found.seconds, 3)}  # without scoring
    results = []
    for target, scores in scored.items():
        detail = " ".join("; ".join([*found.warnings, *scores.notes]).split())
        results.append(
            _result(job, scores.columns | {"status": "ok", "detail": detail} | spent, target, scores.samples)
        )
    return replace(results[0], more=tuple(results[1:]))


def score(job: Job, observation: Observation, knowledge: Knowledge, found: Reconstruction) -> dict[str, Evaluation]:
    """By target: against the private images, and against what all clients trained on instead, where they did."""
    store, round = CellStore(job.root), job.key.round
    recorded = store.recorded(job.key)
    truth = Truth.of(job.truth, recorded.clients, recorded.round_clients)
    scored = {"private": evaluate(truth, observation, knowledge, found, job.row_key())}
    distilled, of_round = (store.load_distilled(round, who) for who in (recorded.clients, recorded.round_clients))
    if distilled is not None and of_round is not None:
        scored["private"].columns.update(truth.nearness(distilled))
        truth = truth.with_images(distilled, of_round)
        scored["distilled"] = evaluate(truth, observation, knowledge, found, job.row_key("distilled"))
    return scored


def lost(job: Job, reason: str, status: str = "failed", **columns: Any) -> JobResult:
    """The row of a job that gave no result, or was never started. columns: what is known of it all the same."""
    return _result(job, {"status": status, "detail": " ".join(reason.split())[:300], **columns})


def _fault(job: Job, error: Exception) -> dict[str, Any]:
    """What a row says of an exception."""
    if isinstance(error, TimeoutError):
        return {"status": "timeout", "detail": f"no result within adversary.timeout = {job.timeout:g} s"}
    return {"status": "failed", "detail": " ".join(f"{type(error).__name__}: {error}".split())}


def _result(
    job: Job, columns: dict[str, Any], target: str = "private", samples: Sequence[dict[str, Any]] = ()
) -> JobResult:
    key = job.row_key(target)
    row = {**key, **job.swept, "adaptive": job.attack.config.adaptive, **columns}
    return JobResult(row_order(job.cell, key), row, [{**sample, **job.swept} for sample in samples])


def _as_text(knowledge: Knowledge | None) -> str:
    return json.dumps(knowledge.given()) if knowledge is not None else ""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the block after so many seconds; only a process's main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
