"""Attacks go on while the server's thread trains: a dispatcher in a thread of its own."""

import queue
import threading
from typing import Any

from simulator.evaluation.dispatch import Dispatcher
from simulator.evaluation.job import Job, JobResult

TICK = 0.2  # seconds between two looks at what has finished or was submitted


class BackgroundDispatcher:
    """Takes jobs and returns results as a `Dispatcher` does, which only its own thread touches.

    Jobs travel a few at a time, each as soon as a worker is free. Nobody would send them while a round is trained: the
    server's thread waits for the clients then.
    """

    def __init__(self, dispatcher: Dispatcher, expected: int):
        """expected: how many jobs there may be."""
        self.dispatcher, self.expected = dispatcher, expected
        self._submitted: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[Job, JobResult] | Exception] = queue.SimpleQueue()
        self._jobs: dict[str, Job] = {}  # submitted and not yet collected, by name
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attacks", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs[job.name] = job
        self._submitted.put(job)

    @property
    def pending(self) -> list[Job]:
        return list(self._jobs.values())

    def collect(self, timeout: float) -> list[tuple[Job, JobResult]]:
        """What has finished or was given up, waiting at most `timeout` seconds for the first. Raises what ended the
        thread."""
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
        """How much of its attack each running job has done, 0 to 1, by name."""
        return self.dispatcher.shares() if self._jobs else {}

    def close(self) -> None:
        """Cancel what runs."""
        self._closing.set()
        self._thread.join()
        self.dispatcher.close()

    def _run(self) -> None:
        try:
            self.dispatcher.prepare(self.expected)
            while not self._closing.is_set():
                self._take(wait=not self.dispatcher.pending)
                for found in self.dispatcher.collect(TICK):
                    self._finished.put(found)
        except Exception as error:
            self._finished.put(error)

    def _take(self, wait: bool) -> None:
        """Hand over what was submitted. wait: a moment for the first."""
        try:
            job: Any = self._submitted.get(timeout=TICK) if wait else self._submitted.get_nowait()
            while True:
                self.dispatcher.submit(job)
                job = self._submitted.get_nowait()
        except queue.Empty:
            return
