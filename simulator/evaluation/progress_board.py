"""Collect the reports of attack workers: their progress, and heartbeats, which say that they have begun or compute.

The board is a Ray actor, so that workers on any machine can reach it, and it times reports by its own clock. It imports
nothing heavy, so that its process is up at once.

It ends nothing, but it keeps heartbeats beside the progress, because Ray tells less. A worker that was killed and
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
        self.last_heartbeat: dict[str, float] = {}
        self.shares: dict[str, float] = {}

    def heartbeat(self, job: str) -> None:
        """Note that a job has begun its attack or its score, or that it computes."""
        self.last_heartbeat[job] = self.clock()

    def progress(self, job: str, share: float) -> None:
        """Note the share done of the attack of a job, 0 to 1."""
        self.shares[job] = share

    def forget(self, job: str) -> None:
        self.last_heartbeat.pop(job, None)
        self.shares.pop(job, None)

    def seconds_since_heartbeat(self) -> dict[str, float]:
        now = self.clock()
        return {job: now - last for job, last in self.last_heartbeat.items()}

    def done(self) -> dict[str, float]:
        return dict(self.shares)


class Reporter:
    """Sends the reports of one job, without waiting; without a board it sends nothing. Progress is no heartbeat: an
    attack that ignores the end of its time could go on for ever.

    show: called with all progress.
    error: the exception that ended the job, None if none did.
    """

    def __init__(self, board: Any = None, job: str = "", heartbeat: Callable[[], None] = lambda: None):
        """board: the handle of the actor. heartbeat: called with each."""
        self.board, self.job, self._heartbeat = board, job, heartbeat
        self.show: Callable[[int, int, float], None] = lambda done, total, loss: None
        self.error: BaseException | None = None
        self.last = 0.0

    def heartbeat(self) -> None:
        self._heartbeat()
        if self.board is not None:
            self.board.heartbeat.remote(self.job)

    def heartbeat_from_handler(self) -> None:
        """Do the same from a signal handler: in a thread, as the interrupted code may be in the middle of Ray."""
        _thread.start_new_thread(self.heartbeat, ())  # takes none of the locks that a Thread does

    def progress(self, done: int, total: int, loss: float) -> None:
        """Show the progress of an attack, and send it at most once a second."""
        self.show(done, total, loss)
        if self.board is not None and time.monotonic() - self.last > INTERVAL:
            self.last = time.monotonic()
            self.board.progress.remote(self.job, done / total)
