"""Files of a run in Ray's object store, from where workers anywhere fetch them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray

from simulator.evaluation.material import Source


class Shelf:
    """Each file is there once, whoever needs it, and as long as somebody does.

    The clients of a round share its global checkpoint, the attacks on an observation all of it. Ray frees what nobody
    refers to any more.
    """

    def __init__(self) -> None:
        self.held: dict[Path, Any] = {}  # references

    def put(self, sources: Mapping[str, Source]) -> list[Any]:
        """References to the tensors, in the order of the sources; what is not there yet is read. InputError where a
        file is missing or damaged."""
        for source in sources.values():
            if source.path not in self.held:
                self.held[source.path] = ray.put(source.read())
        return [self.held[source.path] for source in sources.values()]

    def keep_only(self, needed: Iterable[Path]) -> None:
        """Forget all other files."""
        self.held = {path: self.held[path] for path in set(needed) & set(self.held)}
