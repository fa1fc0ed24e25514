"""Where attack jobs run: as Ray tasks, on the cluster of the simulation or on one of our own."""

import contextlib
import os
import time
from collections import deque
from typing import Any

import ray
import torch

from simulator.evaluation.job import Job, JobResult, lost, run_job
from simulator.evaluation.progress_board import ProgressBoard, Reporter

ATTACK_RESOURCE = "attack"
GRACE = 120.0  # seconds beyond its own time limit after which a job that gives no sign of life is given up, at most
LEAST_GRACE = 20.0
BOARD_TIMEOUT = 10.0  # seconds that the board has to answer


def attack_gpu_share() -> float:
    """A tenth of a GPU for each attack where the cluster has GPUs; clients leave that remainder by default."""
    return 0.1 if ray.cluster_resources().get("GPU", 0) > 0 and torch.cuda.is_available() else 0.0


class Dispatcher:
    """Runs jobs in the background; every job submitted comes back exactly once.

    Tasks ask for no CPU: idle client actors keep theirs reserved for the whole run. On a cluster that offers `attack`
    slots a task takes one of them; on any other, `workers` tasks run at a time (default: one per core).
    """

    def __init__(self, workers: int | None):
        """Ray has to be up, with workers that find our packages (`start_ray`): a task with an environment of its own
        would wait for a new process, where those that Ray has started already stand idle."""
        slots = ray.cluster_resources().get(ATTACK_RESOURCE, 0) >= 1
        taken: dict[str, Any] = {"num_gpus": attack_gpu_share(), "resources": {ATTACK_RESOURCE: 1} if slots else {}}
        self.limit = float("inf") if slots else workers or os.cpu_count() or 1
        self.task = ray.remote(num_cpus=0, max_retries=0, **taken)(run_job)
        self.board: Any = ray.remote(num_cpus=0)(ProgressBoard).remote()
        self.running: dict[Any, Job] = {}
        self.waiting: deque[Job] = deque()
        self.again: set[str] = set()  # names of jobs whose worker died
        self.last_sign = time.monotonic()  # when a job was submitted or came back

    def submit(self, job: Job) -> None:
        self.waiting.append(job)
        self._start()
        self.last_sign = time.monotonic()

    @property
    def pending(self) -> list[Job]:
        return [*self.running.values(), *self.waiting]

    def collect(self, timeout: float) -> list[tuple[Job, JobResult]]:
        """What has finished or was given up, waiting at most `timeout` seconds for the first."""
        if not self.running:
            return []
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=timeout)
        finished = [result for reference in ready for result in self._fetch(reference)]
        if ready:
            self.last_sign = time.monotonic()
        else:
            finished = [self._give_up(reference, why) for reference, why in self._silent().items()]
        self._start()
        return finished

    def shares(self) -> dict[str, float]:
        """How much of its attack each running job has done, 0 to 1, by name."""
        done = self._ask(self.board.done)
        return {job.name: done[job.name] for job in self.running.values() if job.name in done}

    def close(self) -> None:
        for reference in self.running:
            ray.cancel(reference, force=True)
        ray.kill(self.board)

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.limit:
            job = self.waiting.popleft()
            self.running[self.task.remote(job, Reporter(self.board, job.name))] = job

    def _fetch(self, reference: Any) -> list[tuple[Job, JobResult]]:
        """Nothing where its worker died for the first time: a machine may be lost, or another's memory be short. Not by
        Ray's own retries: those would run in the time of the first one."""
        job = self.running.pop(reference)
        self.board.forget.remote(job.name)
        try:
            return [(job, ray.get(reference, timeout=GRACE))]
        except Exception as error:
            if job.name in self.again:
                return [(job, lost(job, f"the attack's worker died: {error}"))]
            self.again.add(job.name)
            self.waiting.append(job)
            return []

    def _silent(self) -> dict[Any, str]:
        """The jobs whose worker gives no sign of life, and what to say of them; all of them where none has one, and
        none came back for long."""
        silence = self._ask(self.board.silence)
        heard = {reference: silence[job.name] for reference, job in self.running.items() if job.name in silence}
        if heard:  # what waits for a slot has all the time that others take
            jobs = {reference: self.running[reference] for reference in heard}
            return {one: unending(job) for one, job in jobs.items() if heard[one] > patience(job)}
        # workers need a while to start, however short their jobs are
        longest = GRACE + max((job.timeout for job in self.running.values()), default=0.0)
        if time.monotonic() - self.last_sign <= longest:
            return {}
        return dict.fromkeys(self.running, f"no worker took it up within {longest:g} s")

    def _give_up(self, reference: Any, why: str) -> tuple[Job, JobResult]:
        ray.cancel(reference, force=True)
        job = self.running.pop(reference)
        self.board.forget.remote(job.name)
        return job, lost(job, why, "timeout")

    def _ask(self, method: Any) -> dict[str, float]:
        """The board's answer; nothing where it gives none."""
        with contextlib.suppress(ray.exceptions.RayError):
            return ray.get(method.remote(), timeout=BOARD_TIMEOUT)
        return {}


def unending(job: Job) -> str:
    return f"attack or score did not end after adversary.timeout = {job.timeout:g} s: their worker was ended"


def patience(job: Job) -> float:
    """Seconds after which an attack is given up that did not stop when its time was over, and so is its score."""
    return job.timeout + min(GRACE, max(LEAST_GRACE, job.timeout))
