"""Collect the reports of attack workers: their progress, and signs that they have begun or still compute.

The board is a Ray actor, so that workers on any machine can reach it, and it times reports by its own clock. It imports
nothing heavy, so that its process is up at once.

It ends nothing, but it keeps signs of life beside the progress, because Ray tells less. A worker that was killed and
one that ended itself at the time limit raise the same WorkerCrashedError with the same text. A task says when it is
done, not when it has begun, and Ray's list of tasks needs its dashboard, which is not started. The time since a job was
sent would not do: it waits behind another, and on a busy machine it computes longer than its processor seconds.
"""

import _thread
import time
from collections.abc import Callable
from typing import Any

INTERVAL = 1.0  # seconds between two reports of a running attack


class ProgressBoard:
    """The last report of every running job, by name."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.heard: dict[str, float] = {}
        self.shares: dict[str, float] = {}

    def alive(self, job: str) -> None:
        """Note a sign of life: the job has begun its attack or its score, or it computes."""
        self.heard[job] = self.clock()

    def progress(self, job: str, share: float) -> None:
        """Note the share done of the attack of a job, 0 to 1."""
        self.shares[job] = share

    def forget(self, job: str) -> None:
        self.heard.pop(job, None)
        self.shares.pop(job, None)

    def silence(self) -> dict[str, float]:
        """Return the seconds since the last sign of life of each running job."""
        now = self.clock()
        return {job: now - heard for job, heard in self.heard.items()}

    def done(self) -> dict[str, float]:
        return dict(self.shares)


class Reporter:
    """Sends the reports of one job, without waiting; without a board it sends nothing. Progress is no sign of life: an
    attack that ignores the end of its time could go on for ever.

    show: called with all progress.
    error: the exception that ended the job, None if none did.
    """

    def __init__(self, board: Any = None, job: str = "", alive: Callable[[], None] = lambda: None):
        """board: the handle of the actor. alive: called with every sign of life."""
        self.board, self.job, self._alive = board, job, alive
        self.show: Callable[[int, int, float], None] = lambda done, total, loss: None
        self.error: BaseException | None = None
        self.last = 0.0

    def alive(self) -> None:
        self._alive()
        if self.board is not None:
            self.board.alive.remote(self.job)

    def still_alive(self) -> None:
        """Do the same from a signal handler: in a thread, as the interrupted code may be in the middle of Ray."""
        _thread.start_new_thread(self.alive, ())  # takes none of the locks that a Thread does

    def progress(self, done: int, total: int, loss: float) -> None:
        """Show the progress of an attack, and send it at most once a second."""
        self.show(done, total, loss)
        if self.board is not None and time.monotonic() - self.last > INTERVAL:
            self.last = time.monotonic()
            self.board.progress.remote(self.job, done / total)
