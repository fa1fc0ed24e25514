"""Work beside a federation, in a thread of its own: a round does not wait for the disk."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore

PATIENCE = 5.0  # seconds that a round waits for the one before to be done with
LAST = 60.0  # seconds that the end of a federation waits


class Background:
    """One task at a time. The thread starts with the first; Python does not exit before it has ended."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fedspill")
        self._free = Semaphore()
        self._patience = PATIENCE

    def do(self, task: Callable[[], None]) -> None:
        """Have it done; TimeoutError where the task before takes too long: this one is then dropped, and the next that
        finds it still under way does not wait again."""
        if not self._free.acquire(timeout=self._patience):
            self._patience = 0.0
            raise TimeoutError("the disk is slower than the federation")
        self._patience = PATIENCE
        self._pool.submit(task).add_done_callback(lambda done: self._free.release())

    def finish(self) -> None:
        """Wait for the last task; TimeoutError where it does not end."""
        if not self._free.acquire(timeout=LAST):
            raise TimeoutError(f"the disk did not take the last round within {LAST:g} s")
        self._free.release()
