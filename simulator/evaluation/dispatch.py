"""Where attack jobs run: on the Ray cluster of the simulation, or in processes of this machine."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from simulator.evaluation.job import Job, JobResult, lost, run_job

ATTACK_RESOURCE = "attack"
GRACE = 120.0  # seconds beyond its own time limit after which a job that gives no sign of life is given up


class Dispatcher(Protocol):
    """Runs jobs in the background; every job submitted comes back exactly once."""

    def submit(self, job: Job) -> None: ...

    def collect(self, timeout: float) -> list[tuple[Job, JobResult]]:
        """What has finished, waiting at most `timeout` seconds for the first."""

    @property
    def pending(self) -> list[Job]: ...

    def close(self) -> None: ...


def make_dispatcher(workers: int | None, gpus: float) -> Dispatcher:
    """Ray where a cluster with `attack` slots is at hand, else a pool of processes."""
    import ray

    if ray.is_initialized() and ray.cluster_resources().get(ATTACK_RESOURCE, 0) >= 1:
        return RayDispatcher(gpus)
    return ProcessDispatcher(workers or os.cpu_count() or 1)


def attack_gpu_share() -> float:
    """A tenth of a GPU for each attack where the cluster has GPUs; clients leave that remainder by default."""
    import ray
    import torch

    there = ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0
    return 0.1 if there and torch.cuda.is_available() else 0.0


class RayDispatcher:
    """Tasks that take an `attack` slot and no CPU: idle client actors keep theirs reserved for the whole run."""

    def __init__(self, gpus: float):
        import ray

        self.ray = ray
        self.task = ray.remote(num_cpus=0, num_gpus=gpus, resources={ATTACK_RESOURCE: 1}, max_retries=1)(run_job)
        self.jobs: dict[Any, Job] = {}
        self.last_sign = time.monotonic()

    def submit(self, job: Job) -> None:
        self.jobs[self.task.remote(job)] = job
        self.last_sign = time.monotonic()

    @property
    def pending(self) -> list[Job]:
        return list(self.jobs.values())

    def collect(self, timeout: float) -> list[tuple[Job, JobResult]]:
        if not self.jobs:
            return []
        ready, _ = self.ray.wait(list(self.jobs), num_returns=1, timeout=timeout)
        finished = []
        for reference in ready:
            job = self.jobs.pop(reference)
            try:
                finished.append((job, self.ray.get(reference, timeout=GRACE)))
            except Exception as error:
                finished.append((job, lost(job, f"the attack's worker died: {error}")))
        if finished:
            self.last_sign = time.monotonic()
        return finished or [self._give_up(reference) for reference in self._silent()]

    def _silent(self) -> list[Any]:
        """The jobs whose worker gives no sign of life; all of them where none has one, and none came back for long."""
        now = time.time()
        signs = {reference: sign_of_life(job) for reference, job in self.jobs.items()}
        running = {reference: sign for reference, sign in signs.items() if sign is not None}
        if running:  # what waits for a slot has all the time that others take
            return [reference for reference, sign in running.items() if now - sign > patience(self.jobs[reference])]
        stuck = time.monotonic() - self.last_sign > max(map(patience, self.jobs.values()), default=0.0)
        return list(self.jobs) if stuck else []

    def _give_up(self, reference: Any) -> tuple[Job, JobResult]:
        self.ray.cancel(reference, force=True)
        job = self.jobs.pop(reference)
        if job.progress_path is not None:
            job.progress_path.unlink(missing_ok=True)
        return job, lost(job, "its worker stopped answering", "timeout")

    def close(self) -> None:
        for reference in self.jobs:
            self.ray.cancel(reference, force=True)


def patience(job: Job) -> float:
    """Seconds without a sign of life after which a job is given up."""
    return GRACE + job.scenario.adversary.timeout


def sign_of_life(job: Job) -> float | None:
    """When its worker last wrote to the file of its progress, seconds since the epoch; None before and after it runs.

    It writes at the start, during the attack and before scoring, so that scoring has time of its own.
    """
    try:
        return job.progress_path.stat().st_mtime if job.progress_path is not None else None
    except FileNotFoundError:
        return None


class ProcessDispatcher:
    """Spawned processes: used by deployments and by Ray clusters that offer no `attack` slots.

    Every thread has one process of its own, so that a process that dies takes no job but its own with it.
    """

    def __init__(self, workers: int):
        self.threads = ThreadPoolExecutor(workers)
        self.own = threading.local()
        self.processes: set[ProcessPoolExecutor] = set()
        self.jobs: dict[Future[JobResult], Job] = {}

    def submit(self, job: Job) -> None:
        self.jobs[self.threads.submit(self._run, job)] = job

    @property
    def pending(self) -> list[Job]:
        return list(self.jobs.values())

    def collect(self, timeout: float) -> list[tuple[Job, JobResult]]:
        finished, _ = wait(self.jobs, timeout=timeout, return_when=FIRST_COMPLETED)
        return [(self.jobs.pop(future), future.result()) for future in finished]

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self.processes):
            process.shutdown(wait=False)

    def _run(self, job: Job) -> JobResult:
        """In the process of this thread; once more in a new one where that died, as Ray does."""
        for _ in range(2):
            process = self._process()
            try:
                return process.submit(run_job, job).result()
            except BrokenProcessPool as error:
                reason = f"the attack's worker died: {error}"
                self.processes.discard(process)
                del self.own.process
            except Exception as error:
                return lost(job, f"the attack's worker failed: {error}")
        return lost(job, reason)

    def _process(self) -> ProcessPoolExecutor:
        """That of this thread."""
        if not hasattr(self.own, "process"):
            self.own.process = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            self.processes.add(self.own.process)
        return self.own.process
