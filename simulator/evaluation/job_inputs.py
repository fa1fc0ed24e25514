"""Read the inputs of a job from a run's files: a worker on another machine has none of the files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from attacks import Knowledge, Observation
from attacks.interface.observation import State
from simulator.results.formats import load_state
from simulator.results.keys import ObservationKey, RecordedObservation
from simulator.results.storage import Architecture, CellStore

Contents = Mapping[str, State]
"""The tensors of files, by the labels of a `Material`."""
PUBLIC = "public images"  # the label of their file; those of checkpoints are their names


@dataclass(frozen=True)
class Material:
    """The inputs of a job, without the tensors.

    told: the granted knowledge, without public images. public: whether these were granted. distilled: the clients of
    the round that distilled their images.
    """

    recorded: RecordedObservation
    architecture: Architecture
    told: Knowledge
    public: bool = False
    distilled: tuple[int, ...] = ()

    @classmethod
    def read(cls, store: CellStore, key: ObservationKey) -> "Material":
        """Read the inputs; raise InputError if something is missing or damaged."""
        recorded, (told, public) = store.recorded(key), store.told(key)
        clients = dict.fromkeys((*recorded.clients, *recorded.round_clients))
        distilled = [client for client in clients if store.distilled_path(key.round, client).exists()]
        return cls(recorded, store.architecture(), told, public, tuple(distilled))

    def sources(self, store: CellStore) -> dict[str, "TensorFile"]:
        """Return the files of the tensors, by label."""
        round, like = self.recorded.key.round, partial(state_of, self.architecture)
        found = {
            name: TensorFile(store.checkpoint_path(name), partial(store.checkpoint, name, like))
            for name in self.recorded.files
        }
        public = {PUBLIC: TensorFile(store.public_path, store.public_images)} if self.public else {}
        paths = {distilled_label(client): store.distilled_path(round, client) for client in self.distilled}
        return found | public | {label: TensorFile(path, partial(load_state, path)) for label, path in paths.items()}

    def observation(self, contents: Contents) -> Observation:
        return self.architecture.observation(self.recorded, contents)

    def granted(self, contents: Contents) -> Knowledge:
        return replace(self.told, public_images=contents[PUBLIC]["images"]) if self.public else self.told

    def distilled_images(self, contents: Contents, clients: Sequence[int]) -> Tensor | None:
        """Return the distilled images of these clients, (M, C, H, W) in [0, 1]; None if some trained on their own."""
        if not set(clients) <= set(self.distilled):
            return None
        return torch.cat([contents[distilled_label(client)]["images"] for client in clients])


@dataclass(frozen=True)
class TensorFile:
    """A file of a run, and its reader, which raises InputError if the file is missing or damaged."""

    path: Path
    read: Callable[[], State]


def distilled_label(client: int) -> str:
    return f"distilled by client {client}"


@lru_cache(maxsize=1)  # of the cell whose jobs are being sent
def state_of(architecture: Architecture) -> State:
    """Return the model's state dict, for the names in it."""
    return architecture.build().state_dict()
