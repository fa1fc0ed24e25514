"""Run attack jobs as Ray tasks, on the cluster of the simulation or on one of our own.

The tensors of a job travel through Ray's object store, and so does the result: only the sending machine reads and
writes the folder of a run. A job that hangs is ended as a client is, from inside: its worker exits
(`clients.time_limit.last_resort`), and Ray says so.
"""

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from attacks.interface.observation import State
from attacks.interface.torch_tools import free_card, require_usable_card
from clients.time_limit import last_resort, unhurried
from simulator.evaluation.job import Job, JobOutput, JobResult, attack, empty_result, error_result, write_files
from simulator.evaluation.progress_board import ProgressBoard, Reporter
from simulator.results.storage import CellStore, ObservationMetadata

ATTACK_RESOURCE = "attack"
# least and most seconds that a job may take beyond its time limit to end; its score may take as many again
LEAST_GRACE, GRACE = 20.0, 120.0
BOARD_TIMEOUT = 10.0  # seconds for an answer of the board, on an idle machine
NO_SLOTS = "no node that is left offers slots for attacks: `ray start --resources` gives it some"
ROUNDING = 1e-6  # of shares of a GPU
AHEAD = 2  # jobs that are sent per slot: one runs while the files of the next travel


def attack_gpu_share() -> float:
    """Return the share of a GPU for each attack: 0.1 if nodes that take attacks have GPUs, else 0."""
    nodes = resources_of_nodes()
    slotted = [there for there in nodes if there.get(ATTACK_RESOURCE)]
    return 0.1 if any(there.get("GPU") for there in slotted or nodes) else 0.0


def attack_slots() -> int:
    """Return how many attacks the nodes offer to run at a time, as far as they have the GPU for an attack."""
    share = attack_gpu_share()
    return int(sum(there.get(ATTACK_RESOURCE, 0) for there in resources_of_nodes() if there.get("GPU", 0) >= share))


def room_on_gpus(share: float, of_a_client: float = 0.0, clients: int = 0) -> int:
    """Return how many attacks with this share of a GPU run beside clients with theirs. Ray splits no share between
    GPUs, and fills one GPU after the other."""
    gpus, left = int(sum(there.get("GPU", 0) for there in resources_of_nodes())), []
    if of_a_client >= 1:
        gpus, of_a_client = max(gpus - int(of_a_client) * clients, 0), 0.0
    for _ in range(gpus):
        here = min(clients, int(1 / of_a_client + ROUNDING)) if of_a_client else 0
        clients -= here
        left.append(1 - here * of_a_client)
    return sum(int(room / share + ROUNDING) for room in left)


def resources_of_nodes() -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def run_remotely(
    job: Job, metadata: ObservationMetadata, labels: tuple[str, ...], board: Any, *tensors: State
) -> JobOutput:
    """Do a job as a Ray task. tensors: of the files with these labels; Ray fetches them before it starts."""
    require_usable_card()
    try:
        with last_resort(patience(job)) as once_more:
            return attack(job, metadata, dict(zip(labels, tensors, strict=True)), Reporter(board, job.name, once_more))
    finally:
        free_card()


def calls_of_a_worker() -> int:
    """Return how many attacks one process runs: 0 for any number, so that it imports once.

    Ray's own choice for tasks with a share of a GPU is 1. So is ours if a node has several GPUs: a process that has
    computed on one stays on it, whichever GPU Ray gives to its next task.
    """
    return int(any(there.get("GPU", 0) > 1 for there in resources_of_nodes()))


class Dispatcher:
    """Runs jobs in the background; every submitted job comes back exactly once.

    Tasks ask for no CPU: idle client actors keep theirs reserved for the whole run. On a cluster that offers `attack`
    slots a task takes one of them; on any other, `workers` tasks run at a time (default: one per core), spread over the
    nodes. Only as many jobs are sent as keep the workers busy, so that the object store never holds all files. taken:
    the resources and options that a task asks of Ray.
    """

    def __init__(
        self, workers: int | None, environment: Mapping[str, str] | None = None, beside: tuple[float, int] = (0.0, 0)
    ):
        """Ray has to be up, with workers that find our packages (`start_ray`). environment: variables that the workers
        of somebody else's Ray lack; the first task then waits for a new process. beside: the share of a GPU of a
        client, and how many clients train at a time; no more attacks are sent than have room beside them, as one that
        waits for its share in Ray would take that of a client whose process ends."""
        slots = attack_slots()
        self.slotted = slots > 0
        self.taken: dict[str, Any] = {
            "num_gpus": attack_gpu_share(),
            "resources": {ATTACK_RESOURCE: 1} if slots else {},
        }
        if not slots:  # tasks that ask for nothing fit anywhere: Ray would pile them on one node
            self.taken["scheduling_strategy"] = "SPREAD"
        self.at_a_time = slots or workers or os.cpu_count() or 1
        self.limit = AHEAD * slots or workers or int(ray.cluster_resources().get("CPU", 0)) or os.cpu_count() or 1
        if share := self.taken["num_gpus"]:
            self.limit = max(min(self.limit, room_on_gpus(share, *beside)), 1)
        if environment is not None:
            self.taken["runtime_env"] = {"env_vars": dict(environment)}
        as_task = ray.remote(num_cpus=0, max_retries=0, max_calls=calls_of_a_worker(), **self.taken)
        self.task = as_task(run_remotely)
        # on the node that sends jobs, which is lost last
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        where: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
        self.board: Any = ray.remote(**where)(ProgressBoard).remote()
        # references to files in the object store: a round's clients share its global checkpoint, attacks an observation
        self.held: dict[Path, Any] = {}
        self.running: dict[Any, Job] = {}
        self.waiting: deque[Job] = deque()
        self.again: set[str] = set()  # names of jobs whose worker died
        self.needs: dict[str, list[Path]] = {}  # files of each running job, by its name
        self.unsent: list[tuple[Job, JobResult]] = []  # jobs whose files cannot be read
        self.last_sign = time.monotonic()  # when a job was sent or came back
        self.without_slots: float | None = None  # since when no node offers any

    def submit(self, job: Job) -> None:
        self.waiting.append(job)
        self._start()

    @property
    def pending(self) -> list[Job]:
        return [*self.running.values(), *self.waiting, *(job for job, _ in self.unsent)]

    def collect(self, timeout: float) -> list[tuple[Job, JobResult]]:
        """Return what has finished or was given up, waiting at most `timeout` seconds for the first."""
        finished, self.unsent = self.unsent, []
        if not self.running:
            self._start()
            return finished
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=0 if finished else timeout)
        finished += [result for reference in ready for result in self._fetch(reference)]
        if ready or finished:
            self.last_sign = time.monotonic()
        elif self._no_slots_left():
            finished = [self._give_up(reference, NO_SLOTS, "failed") for reference in list(self.running)]
        elif why := self._no_worker_comes():
            finished = [self._give_up(reference, why, "timeout") for reference in list(self.running)]
        self._start()
        return finished

    def shares(self) -> dict[str, float]:
        """Return the share done of the attack of each running job, 0 to 1, by its words."""
        done = self._ask(self.board.done)
        running = [job for job in list(self.running.values()) if job.name in done]
        return {job.key.said(job.settings.cell, job.attack.label): done[job.name] for job in running}

    def close(self) -> None:
        for reference in self.running:
            ray.cancel(reference, force=True)
        self.held = {}
        ray.kill(self.board)

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.limit:
            self._send(self.waiting.popleft())
        needed = {path for paths in self.needs.values() for path in paths}
        self.held = {path: self.held[path] for path in needed & set(self.held)}  # Ray frees the others

    def _send(self, job: Job) -> None:
        start, recorded = time.perf_counter(), None
        try:
            metadata = ObservationMetadata.read(store := CellStore(job.root), job.key)
            recorded, sources = metadata.recorded, metadata.tensor_files(store)
            for path, read in sources.values():
                if path not in self.held:
                    self.held[path] = ray.put(read())
            tensors = [self.held[path] for path, _ in sources.values()]
        except Exception as error:
            self.unsent.append((job, error_result(job, error, start, recorded)))
            return
        self.running[self.task.remote(job.for_workers, metadata, tuple(sources), self.board, *tensors)] = job
        self.needs[job.name] = [path for path, _ in sources.values()]
        self.last_sign = time.monotonic()

    def _over(self, reference: Any) -> Job:
        job = self.running.pop(reference)
        self.needs.pop(job.name, None)
        self.board.forget.remote(job.name)
        return job

    def _fetch(self, reference: Any) -> list[tuple[Job, JobResult]]:
        """Return the result of a finished task. If its worker died (a machine may be lost, or its memory short), queue
        the job again, once, and return nothing. Ray's own retries would run in the time of the first attempt. A job
        whose worker ended itself, because the job would not end, is not tried again."""
        job = self.running[reference]
        try:
            return [(job, write_files(job, ray.get(reference, timeout=unhurried(GRACE))))]
        except Exception as error:
            if self._ask(self.board.seconds_since_heartbeat).get(job.name, 0.0) > job.timeout:
                limit = f"{job.settings.limit} = {job.timeout:g} s"
                why = f"attack or score did not end after {limit}: their worker was ended"
                return [(job, empty_result(job, why, "timeout"))]
            if job.name in self.again:
                return [(job, empty_result(job, f"the attack's worker died: {error}"))]
            self.again.add(job.name)
            self.waiting.append(job)
            return []
        finally:
            self._over(reference)

    def _no_worker_comes(self) -> str:
        """Return why to give up the running jobs, if none came back and no worker took one up in time; else ""."""
        # workers need a while to start, however short their jobs are
        longest = unhurried(GRACE + max((job.timeout for job in self.running.values()), default=0.0))
        if time.monotonic() - self.last_sign <= longest or self._ask(self.board.seconds_since_heartbeat):
            return ""
        return f"no worker took it up within {longest:g} s"

    def _no_slots_left(self) -> bool:
        """Return whether the nodes that offered slots are gone, and none came back for a while."""
        now = time.monotonic()
        if not self.slotted or attack_slots():
            self.without_slots = None
            return False
        self.without_slots = self.without_slots or now
        return now - self.without_slots > GRACE

    def _give_up(self, reference: Any, why: str, status: str) -> tuple[Job, JobResult]:
        ray.cancel(reference, force=True)
        return (job := self._over(reference)), empty_result(job, why, status)

    def _ask(self, method: Any) -> dict[str, float]:
        """Return the answer of the board; nothing if it gives none."""
        with contextlib.suppress(ray.exceptions.RayError):
            return ray.get(method.remote(), timeout=unhurried(BOARD_TIMEOUT))
        return {}


def patience(job: Job) -> float:
    """Return the seconds by the clock after which the worker of a job exits if the job does not compute."""
    return job.timeout + min(GRACE, max(LEAST_GRACE, job.timeout))


TICK = 0.2  # seconds between two looks at what has finished or was submitted


class BackgroundDispatcher:
    """Runs a `Dispatcher` in a thread, so that attacks go on while the server's thread waits for clients."""

    def __init__(self, dispatcher: Dispatcher):
        self.dispatcher = dispatcher
        self._finished: queue.SimpleQueue[tuple[Job, JobResult] | Exception] = queue.SimpleQueue()
        self._jobs: dict[str, Job] = {}  # submitted and not yet collected, by name
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attacks", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs[job.name] = job
        self.dispatcher.waiting.append(job)  # its thread looks there every TICK

    @property
    def pending(self) -> list[Job]:
        return list(self._jobs.values())

    def collect(self, timeout: float) -> list[tuple[Job, JobResult]]:
        """Return what has finished or was given up, waiting at most `timeout` seconds for the first. Raise the
        exception that ended the thread."""
        found: list[tuple[Job, JobResult]] = []
        try:
            while True:
                one = self._finished.get(timeout=timeout) if timeout and not found else self._finished.get_nowait()
                if isinstance(one, Exception):
                    raise one
                found.append(one)
                del self._jobs[one[0].name]
        except queue.Empty:
            return found

    def shares(self) -> dict[str, float]:
        return self.dispatcher.shares() if self._jobs else {}

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self.dispatcher.close()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for found in self.dispatcher.collect(TICK):
                    self._finished.put(found)
                if not self.dispatcher.pending:
                    self._closing.wait(TICK)
        except Exception as error:
            self._finished.put(error)
