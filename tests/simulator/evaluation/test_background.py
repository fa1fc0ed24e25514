"""The thread that hands jobs to a dispatcher, without Ray."""

import threading
import time

import pytest

from simulator.evaluation.dispatch import BackgroundDispatcher
from simulator.evaluation.job import empty_result
from tests.simulator.evaluation.observed import make_job


class InOrder:
    """Finishes one job at a time, in its caller's thread. threads: who has called it."""

    def __init__(self):
        self.pending, self.threads, self.closed = [], set(), False
        self.waiting = self.pending

    def collect(self, timeout):
        self.threads.add(threading.current_thread())
        if self.pending and self.pending[0].key.client == 13:
            raise OSError("the cluster is gone")
        return [(job := self.pending.pop(0), empty_result(job, "done"))] if self.pending else []

    def close(self):
        self.closed = True


def collected(background):
    found, deadline = [], time.monotonic() + 120
    while background.pending and time.monotonic() < deadline:
        found += background.collect(timeout=0.5)
    return [job.key.client for job, _ in found]


def test_jobs_finish_while_nobody_asks_for_them_and_come_back_once(tmp_path):
    dispatcher = InOrder()
    background = BackgroundDispatcher(dispatcher)
    for client in range(5):
        background.submit(make_job(tmp_path, client))
    deadline = time.monotonic() + 120
    while background._finished.qsize() < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert background._finished.qsize() == 5 and len(background.pending) == 5
    assert collected(background) == [0, 1, 2, 3, 4] and background.collect(timeout=0) == []
    background.close()
    assert dispatcher.closed and threading.current_thread() not in dispatcher.threads


def test_what_ends_the_thread_is_raised_where_results_are_collected(tmp_path):
    background = BackgroundDispatcher(InOrder())
    for client in (1, 13):
        background.submit(make_job(tmp_path, client))
    with pytest.raises(OSError, match="the cluster is gone"):
        collected(background)
    assert [job.key.client for job in background.pending] == [13]
    background.close()
