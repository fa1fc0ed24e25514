"""What goes wrong beside a federation: caught, logged once for each kind, and kept as lines."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

# below Flower's logger, whose lines a user of `flwr run --stream` reads
log = logging.getLogger("flwr.fedspill")


class Problems:
    """Problems by their kind, from any thread: the first of each as a line, with the number of those that followed."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._more: dict[tuple[str, str], int] = {}
        self._lock = Lock()

    @contextmanager
    def caught(self, what: str, where: str = "") -> Iterator[None]:
        """Any exception inside is noted and goes no further. what: its kind, together with its type. where: which."""
        try:
            yield
        except Exception as error:
            with self._lock:
                self._note(what, where, error)

    def lines(self) -> tuple[str, ...]:
        with self._lock:
            more = {kind: f" (and {count} more of the kind)" if count else "" for kind, count in self._more.items()}
            return tuple(first + more[kind] for kind, first in self._first.items())

    def _note(self, what: str, where: str, error: Exception) -> None:
        kind = (what, type(error).__name__)
        if kind in self._first:
            self._more[kind] += 1
            return
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        self._first[kind] = f"{where}: {what} ({reason})" if where else f"{what} ({reason})"
        self._more[kind] = 0
        log.warning("fedspill, recording: %s; the federation goes on", self._first[kind])
