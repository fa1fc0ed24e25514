"""Where attack jobs run: as Ray tasks, on the cluster of the simulation or on one of our own.

What a task needs of the run's files goes with it through Ray's object store, and what the attack found comes back the
same way: the folder of a run is on the machine that sends, and nobody else reads or writes there.
"""

import contextlib
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from attacks.interface.observation import State
from simulator.evaluation.job import Finished, Job, JobResult, attack, fault, filed, lost
from simulator.evaluation.material import Material
from simulator.evaluation.progress_board import ProgressBoard, Reporter
from simulator.evaluation.shelf import Shelf
from simulator.results.storage import CellStore

ATTACK_RESOURCE = "attack"
GRACE = 120.0  # seconds beyond its own time limit after which a job that gives no sign of life is given up
BOARD_TIMEOUT = 10.0  # seconds that the board has to answer
NO_SLOTS = "no node that is left offers slots for attacks: `ray start --resources` gives it some"
AHEAD = 2  # jobs per slot that are on their way: one is attacked, the files of the next travel


def attack_gpu_share() -> float:
    """A tenth of a GPU for each attack where the cluster has GPUs; clients leave that remainder by default."""
    return 0.1 if ray.cluster_resources().get("GPU", 0) > 0 and torch.cuda.is_available() else 0.0


def attack_slots() -> int:
    """How many attacks the nodes of the cluster offer to run at a time."""
    return int(ray.cluster_resources().get(ATTACK_RESOURCE, 0))


def run_remotely(
    job: Job, material: Material, labels: tuple[str, ...], reporter: Reporter, *tensors: State
) -> Finished:
    """The task. tensors: of the files with these labels; Ray fetches them before it starts."""
    return attack(job, material, dict(zip(labels, tensors, strict=True)), reporter)


class Dispatcher:
    """Runs jobs in the background; every job submitted comes back exactly once.

    Tasks ask for no CPU: idle client actors keep theirs reserved for the whole run. On a cluster that offers `attack`
    slots a task takes one of them; on any other, `workers` tasks run at a time (default: one per core), spread over the
    nodes. Only so many jobs are on their way as keep the workers busy, so that the object store never holds the files
    of all. taken: what a task asks of Ray.
    """

    def __init__(self, workers: int | None):
        """Ray has to be up, with workers that find our packages (`start_ray`): a task with an environment of its own
        would wait for a new process, where those that Ray has started already stand idle."""
        slots = attack_slots()
        self.slotted = slots > 0
        self.taken: dict[str, Any] = {
            "num_gpus": attack_gpu_share(),
            "resources": {ATTACK_RESOURCE: 1} if slots else {},
        }
        if not slots:  # a task that asks for nothing fits anywhere, and Ray would pile them all on one node
            self.taken["scheduling_strategy"] = "SPREAD"
        self.limit = AHEAD * slots or workers or int(ray.cluster_resources().get("CPU", 0)) or os.cpu_count() or 1
        self.task = ray.remote(num_cpus=0, max_retries=1, **self.taken)(run_remotely)
        self.board = _board()
        self.shelf = Shelf()
        self.running: dict[Any, Job] = {}
        self.waiting: deque[Job] = deque()
        self.needs: dict[str, list[Path]] = {}  # files of each running job, by its name
        self.unsent: list[tuple[Job, JobResult]] = []  # jobs whose files cannot be read
        self.last_sign = time.monotonic()  # when a job was submitted or came back
        self.without_slots: float | None = None  # since when no node offers any

    def submit(self, job: Job) -> None:
        self.waiting.append(job)
        self._start()
        self.last_sign = time.monotonic()

    @property
    def pending(self) -> list[Job]:
        return [*self.running.values(), *self.waiting, *(job for job, _ in self.unsent)]

    def collect(self, timeout: float) -> list[tuple[Job, JobResult]]:
        """What has finished or was given up, waiting at most `timeout` seconds for the first."""
        finished, self.unsent = self.unsent, []
        if not self.running:
            return finished
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=0 if finished else timeout)
        finished += [self._fetch(reference) for reference in ready]
        if finished:
            self.last_sign = time.monotonic()
        elif self._no_slots_left():
            finished = [self._give_up(reference, NO_SLOTS, "failed") for reference in list(self.running)]
        else:
            finished = [
                self._give_up(reference, "its worker stopped answering", "timeout") for reference in self._silent()
            ]
        self._start()
        return finished

    def shares(self) -> dict[str, float]:
        """How much of its attack each running job has done, 0 to 1, by name."""
        done = self._ask(self.board.done)
        return {job.name: done[job.name] for job in list(self.running.values()) if job.name in done}

    def close(self) -> None:
        for reference in self.running:
            ray.cancel(reference, force=True)
        self.shelf.keep_only([])
        ray.kill(self.board)

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.limit:
            self._send(self.waiting.popleft())
        self.shelf.keep_only(path for paths in self.needs.values() for path in paths)

    def _send(self, job: Job) -> None:
        start, recorded = time.perf_counter(), None
        try:
            material = Material.read(store := CellStore(job.root), job.key)
            recorded, sources = material.recorded, material.sources(store)
            tensors = self.shelf.put(sources)
        except Exception as error:
            self.unsent.append((job, fault(job, error, start, recorded)))
            return
        reporter = Reporter(self.board, job.name)
        self.running[self.task.remote(job.for_workers, material, tuple(sources), reporter, *tensors)] = job
        self.needs[job.name] = [source.path for source in sources.values()]

    def _over(self, reference: Any) -> Job:
        """The job, which runs no longer."""
        job = self.running.pop(reference)
        self.needs.pop(job.name, None)
        self.board.forget.remote(job.name)
        return job

    def _fetch(self, reference: Any) -> tuple[Job, JobResult]:
        job = self._over(reference)
        try:
            return job, filed(job, ray.get(reference, timeout=GRACE))
        except Exception as error:
            return job, lost(job, f"the attack's worker died: {error}")

    def _silent(self) -> list[Any]:
        """The jobs whose worker gives no sign of life; all of them where none has one, and none came back for long."""
        silence = self._ask(self.board.silence)
        heard = {reference: silence[job.name] for reference, job in self.running.items() if job.name in silence}
        if heard:  # what waits for a slot has all the time that others take
            return [reference for reference, seconds in heard.items() if seconds > patience(self.running[reference])]
        stuck = time.monotonic() - self.last_sign > max(map(patience, self.running.values()), default=0.0)
        return list(self.running) if stuck else []

    def _no_slots_left(self) -> bool:
        """Whether the nodes that offered some are gone, and none came back for a while."""
        now = time.monotonic()
        if not self.slotted or attack_slots():
            self.without_slots = None
            return False
        self.without_slots = self.without_slots or now
        return now - self.without_slots > GRACE

    def _give_up(self, reference: Any, reason: str, status: str) -> tuple[Job, JobResult]:
        ray.cancel(reference, force=True)
        return (job := self._over(reference)), lost(job, reason, status)

    def _ask(self, method: Any) -> dict[str, float]:
        """The board's answer; nothing where it gives none."""
        with contextlib.suppress(ray.exceptions.RayError):
            return ray.get(method.remote(), timeout=BOARD_TIMEOUT)
        return {}


def _board() -> Any:
    """The board as an actor on the node that sends jobs, which is lost last."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    where: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
    return ray.remote(**where)(ProgressBoard).remote()


def patience(job: Job) -> float:
    """Seconds without a sign of life after which a job is given up."""
    return GRACE + job.timeout
