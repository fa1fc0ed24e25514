"""One attack on one observation, and its score: the unit of work that Ray runs, resumes and replays."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attacks import Knowledge, Observation, Reconstruction, torch_generator
from attacks.interface.attack import Progress, silent
from simulator.adversary.knowledge import adapted
from simulator.evaluation.evaluator import evaluate
from simulator.evaluation.truth import Truth
from simulator.results.storage import CellStore, Sight, save_reconstruction
from simulator.scenario.scenario import Scenario
from simulator.scenario.sections import AttackConfig


@dataclass(frozen=True)
class Job:
    """Everything a worker needs, small and picklable. clients: whose images the private set is."""

    cell: str
    swept: dict[str, Any]
    scenario: Scenario
    root: Path
    sight: Sight
    attack: AttackConfig
    clients: tuple[int, ...]
    round_clients: tuple[int, ...]
    progress_path: Path | None = None

    @property
    def row_key(self) -> dict[str, Any]:
        """The columns that identify a row of the leakage table."""
        return {
            "round": self.sight.round,
            "client": self.sight.client,
            "threat_model": self.sight.threat_model,
            "attack": self.attack.label,
            "defense": self.scenario.defense,
            "seed": self.scenario.seed,
            "target": "private",
        }


@dataclass(frozen=True)
class JobResult:
    """A row of the leakage table and its rows of the samples table. order: where they stand in the tables. more: the
    same attack scored against another target."""

    order: tuple[Any, ...]
    row: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)
    more: tuple["JobResult", ...] = ()


def run_job(job: Job) -> JobResult:
    """Attack, store, score. A fault becomes a row with its status and reason; nothing is raised."""
    store, start = CellStore(job.root), time.perf_counter()
    knowledge: Knowledge | None = None
    scored: list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], list[str]]] = []
    try:
        show_life(job)
        observation, knowledge = store.load(job.sight)
        knowledge = adapted(knowledge, job.attack, job.scenario)
        progress = progress_writer(job.progress_path)
        with time_limit(job.scenario.adversary.timeout):
            scenario = job.scenario
            found = run_attack(job.attack, observation, knowledge, scenario.seed, scenario.engine.threads, progress)
        show_life(job)
        save_reconstruction(store.reconstruction_path(job.sight, job.attack.label), found)
        truth = Truth.of(job.scenario, list(job.clients), list(job.round_clients))
        distilled = of_distilled(truth, store, job)
        columns, samples, notes = evaluate(truth, observation, knowledge, found, job.row_key)
        if distilled is not None:
            columns |= truth.nearness(distilled.private)
            key = {**job.row_key, "target": "distilled"}
            scored.append((key, *evaluate(distilled, observation, knowledge, found, key)))
        scored.insert(0, (job.row_key, columns, samples, notes))
        status, detail = "ok", list(found.warnings)
    except TimeoutError:
        status, detail = "timeout", [f"no result within adversary.timeout = {job.scenario.adversary.timeout:g} s"]
    except Exception as error:
        status, detail = "failed", [f"{type(error).__name__}: {error}"]
    finally:
        if job.progress_path is not None:
            job.progress_path.unlink(missing_ok=True)
    told = json.dumps(knowledge.given()) if knowledge is not None else ""
    seconds = round(found.seconds if status == "ok" else time.perf_counter() - start, 3)  # without scoring
    results = [
        JobResult(
            row_order(job.cell, key),
            {
                **key,
                **job.swept,
                **columns,
                "status": status,
                "detail": " ".join("; ".join([*detail, *notes]).split()),
                "knowledge": told,
                "seconds": seconds,
                "adaptive": job.attack.adaptive,
            },
            [{**sample, **job.swept} for sample in samples],
        )
        for key, columns, samples, notes in (scored if status == "ok" else [(job.row_key, {}, [], [])])
    ]
    return replace(results[0], more=tuple(results[1:]))


def of_distilled(truth: Truth, store: CellStore, job: Job) -> Truth | None:
    """The same with what clients trained on instead of their images, in the pool too; None where some did not."""
    own, of_round = (store.load_distilled(job.sight.round, who) for who in (job.clients, job.round_clients))
    if own is None or of_round is None:
        return None
    return replace(truth, private=own, pool=replace(truth.pool, private=of_round))


def show_life(job: Job) -> None:
    """Tell the dispatcher that the job is running: it gives up those that have been silent for too long."""
    if job.progress_path is not None:
        job.progress_path.touch()


def lost(job: Job, reason: str, status: str = "failed") -> JobResult:
    """The row of a job whose worker did not come back."""
    row: dict[str, Any] = {**job.row_key, **job.swept, "status": status, "detail": " ".join(reason.split())[:300]}
    row["adaptive"] = job.attack.adaptive
    return JobResult(row_order(job.cell, job.row_key), row)


def row_order(cell: str, key: dict[str, Any]) -> tuple[Any, ...]:
    """Rows are sorted by this, whatever order Ray finished in; the union of clients comes after the clients."""
    client = key["client"] if key["client"] >= 0 else float("inf")
    return (cell, key["round"], client, key["threat_model"], key["attack"], key["target"])


def run_attack(
    config: AttackConfig,
    observation: Observation,
    knowledge: Knowledge,
    seed: int,
    threads: int = 1,
    progress: Progress = silent,
) -> Reconstruction:
    """The attack itself, live or replayed: the same observation, knowledge, seed and threads give the same bits."""
    torch.set_num_threads(threads)
    purpose = f"attack/{observation.threat_model}/{config.label}"
    generator = torch_generator(seed, purpose, observation.round, observation.client)
    return config.make().run(observation, knowledge, generator, progress)


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


def progress_writer(path: Path | None) -> Progress:
    """Leaves the share done in a small file, at most once a second, for whoever draws the progress bar."""
    if path is None:
        return silent
    last = 0.0

    def write(done: int, total: int, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last > 1:
            last = time.monotonic()
            path.write_text(f"{done / total:.4f}")

    return write
