"""The files of a cell of a run: checkpoints, observations, the architecture, reconstructions.

`make_knowledge` makes knowledge from plain values, of a file or a user. `ObservationMetadata` is an observation without
its tensors, for a worker on another machine.
"""

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from attacks import InputError, Knowledge, Observation
from attacks.interface.observation import State
from clients.config import ModelConfig, as_json, first_fault
from clients.models import build_model
from clients.models.checkpoint import read_checkpoint
from simulator.results.disk import below, inside, read_model, save_state, write_model, writing
from simulator.results.keys import ALL, ObservationKey, RecordedObservation

PER_CHANNEL = ("pixel_mean", "pixel_std")  # fields of knowledge


class _KnowledgeFields(Knowledge):
    """Knowledge as pydantic checks it: the tensor of public images is no JSON value and passes unseen."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)


KNOWLEDGE = TypeAdapter(_KnowledgeFields)


def make_knowledge(given: dict[str, Any]) -> Knowledge:
    """Make knowledge from plain values, as `given()` wrote them or a user typed them; InputError names a wrong one."""
    one_channel = {name: [given[name]] for name in PER_CHANNEL if isinstance(given.get(name), int | float)}
    values = given | one_channel
    text = as_json(values, "knowledge")
    try:
        return Knowledge(**vars(KNOWLEDGE.validate_json(text, strict=True)))
    except ValidationError as error:
        wrong = first_fault(error)
        if not wrong["loc"]:  # Knowledge itself refused
            raise InputError(wrong["msg"]) from None
        field = wrong["loc"][0]
        example = Knowledge.about()[str(field)].example
        raise InputError(
            f"knowledge {field} is {given[str(field)]!r}: {wrong['msg'].lower()}; write it like {example}"
        ) from None


Side = Annotated[int, Field(ge=1, le=2**16)]  # of an image, of the outputs


class Architecture(BaseModel):
    """The network that the checkpoints of a cell belong to: all that an attack needs of the scenario.

    shape: (C, H, W) of the network's input.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: ModelConfig
    shape: tuple[Side, Side, Side]
    outputs: Side
    seed: int

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def build(self) -> nn.Module:
        """Build the network, with weights that mean nothing."""
        return build_model(self.model, self.shape, self.outputs, self.seed)


ARCHITECTURE_FILE = "architecture.json"


class CellStore:
    """The checkpoints, observations and reconstructions of one cell of a run, under `root`."""

    def __init__(self, path: Path, cell: str = "", archive: bool = False):
        """path: of the run. cell: the name of a cell of a sweep, which has a folder of its own. archive: whether
        checkpoints are read much later, if at all (`save_state`)."""
        self.path, self.root = path, below(path, path / "cells" / cell) if cell else path
        self.checkpoints = self.root / "checkpoints"
        self.reconstructions = self.root / "reconstructions"
        self.truth = self.root / "truth"
        self.archive = archive
        self.files: dict[str, str] = {}
        """Checksums of the files that this process has written, by their names below the run's folder."""

    def create(self, model: ModelConfig, shape: tuple[int, int, int], outputs: int, seed: int) -> None:
        """Make the folders, and write the architecture."""
        for folder in (self.checkpoints, self.reconstructions):
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        # initial weights come from the checkpoints
        architecture = Architecture(model=model.without_initial_weights(), shape=shape, outputs=outputs, seed=seed)
        self._note(self.checkpoints / ARCHITECTURE_FILE, architecture)

    def save_global(self, round: int, state: State) -> str:
        """Write the global checkpoint after `round` (0: the one that starts the federation); return its name."""
        return self._save(global_name(round), state)

    def save_sent(self, round: int, client: int, state: State) -> str:
        """Write a checkpoint that a client was sent, or all of them (ALL), other than a round's global checkpoint."""
        return self._save(f"sent_{'all' if client == ALL else f'{client:02d}'}_round_{round:04d}.safetensors", state)

    def save_client(self, round: int, client: int, state: State) -> str:
        return self._save(client_name(round, client), state)

    def save_sum(self, round: int, state: State) -> str:
        """Write what secure aggregation shows the server: the mean of the checkpoints that clients returned."""
        return self._save(f"sum_{round:04d}.safetensors", state)

    def save_distilled(self, round: int, client: int, images: Tensor) -> None:
        """Write the images that a client trained on instead of its own, (M, C, H, W) in [0, 1], for the scorer."""
        with writing(self.truth):
            self.truth.mkdir(exist_ok=True)
        self._note_state(self.distilled_path(round, client), {"images": images})

    def distilled_path(self, round: int, client: int) -> Path:
        return inside(self.path, self.truth / f"distilled_client_{client:02d}_round_{round:04d}.safetensors")

    def load_distilled(self, round: int, clients: Sequence[int]) -> Tensor:
        """Return the distilled images of all these clients. Raise InputError if some trained on their own."""
        return torch.cat([read_checkpoint(self.distilled_path(round, client))["images"] for client in clients])

    def save_public_images(self, images: Tensor) -> None:
        self._note_state(self.public_path, {"images": images})

    @property
    def public_path(self) -> Path:
        return inside(self.path, self.checkpoints / "public_images.safetensors")

    def save_observation(
        self, recorded: RecordedObservation, knowledge: Knowledge, checkpoints: Path | None = None
    ) -> None:
        """Write the file of an observation. knowledge: what its adversary was granted. checkpoints: the folder in which
        its checkpoints stay, if it is another one."""
        folder = Path() if checkpoints is None else checkpoints.resolve()
        pairs = tuple((str(folder / initial), str(folder / final)) for initial, final in recorded.pairs)
        content = recorded.model_copy(update={"knowledge": knowledge.given(), "pairs": pairs})
        self._note(self.observation_path(recorded.key), content)

    def checksum(self, recorded: RecordedObservation) -> str:
        """Return the checksum of the file and the checkpoints of an observation that this process has written."""
        paths = self.observation_path(recorded.key), *map(self.checkpoint_path, recorded.files)
        parts = [self.files[path.relative_to(self.path).as_posix()] for path in paths]
        return f"{zlib.crc32(' '.join(parts).encode()):08x}"

    def observation_path(self, key: ObservationKey) -> Path:
        return inside(self.path, self.checkpoints / f"{key.name}.json")

    def observation_keys(self) -> list[ObservationKey]:
        """Return the keys of all observations, in the order of their files."""
        paths = [inside(self.path, path) for path in sorted(self.checkpoints.glob("round_*.json"))]
        return [read_model(path, RecordedObservation).key for path in paths]

    def recorded(self, key: ObservationKey) -> RecordedObservation:
        """Read the file of an observation."""
        path = self.observation_path(key)
        if not os.path.exists(path):  # also where the name is too long for a disk
            known = ", ".join(other.name for other in self.observation_keys()[:6]) or "none"
            raise InputError(f"no observation {key.name!r} in {str(self.root)!r}; recorded: {known}")
        return read_model(path, RecordedObservation).model_copy(update=key.columns)

    def load(self, key: ObservationKey) -> tuple[Observation, Knowledge]:
        metadata = ObservationMetadata.read(self, key)
        tensors = {label: read() for label, (_, read) in metadata.tensor_files(self).items()}
        return metadata.observation(tensors), metadata.granted(tensors)

    def checkpoint_path(self, name: str) -> Path:
        """Return the path of a checkpoint. name: as an observation has it. Audits name the checkpoints of their
        recording by full paths, which have to lie in a folder `checkpoints`."""
        path = self.checkpoints / name
        if os.path.isabs(name) and path.parent.name == self.checkpoints.name:
            return inside(path.parent, path)
        return inside(self.path, path)

    def checkpoint(self, name: str, like: Callable[[], State]) -> State:
        """Load a checkpoint. name: as an observation has it. like: returns the model's state dict."""
        path = self.checkpoint_path(name)
        if not os.path.exists(path):  # also where the name is too long for a disk
            raise InputError(
                f"checkpoint {str(path)!r} does not exist: output.keep {{last: …}} keeps the last rounds only"
            )
        return read_checkpoint(path, like())

    def public_images(self) -> State:
        """Load the images that adversaries were given, as {"images": (P, C, H, W)}."""
        found = read_checkpoint(self.public_path)
        if "images" not in found:
            raise InputError(f"{str(self.public_path)!r} has no images: the run directory is damaged")
        return found

    def granted(self, key: ObservationKey) -> Knowledge:
        """Return the knowledge of the adversary of an observation."""
        return granted_in(self.recorded(key), self.public_images)

    def architecture(self) -> Architecture:
        return read_model(inside(self.path, self.checkpoints / ARCHITECTURE_FILE), Architecture)

    def reconstruction_path(self, key: ObservationKey, attack: str) -> Path:
        return inside(self.path, self.reconstructions / f"{key.name}_{attack}.npz")

    def membership_path(self, key: ObservationKey) -> Path:
        return inside(self.path, self.root / "membership" / f"{key.name}.csv")

    def _save(self, name: str, state: State) -> str:
        self._note_state(self.checkpoints / name, state)
        return name

    def _note_state(self, path: Path, state: State) -> None:
        if checksum := save_state(path, state, self.archive):
            self.files[path.relative_to(self.path).as_posix()] = checksum

    def _note(self, path: Path, content: BaseModel) -> None:
        self.files[path.relative_to(self.path).as_posix()] = write_model(path, content)


def global_name(round: int) -> str:
    return f"global_{round:04d}.safetensors"


def client_name(round: int, client: int) -> str:
    """Return the name of the file of the checkpoint that a client returned."""
    return f"client_{client:02d}_round_{round:04d}.safetensors"


def granted_in(recorded: RecordedObservation, public_images: Callable[[], State]) -> Knowledge:
    """Return the granted knowledge. public_images: loads those images, if they are granted."""
    given = dict(recorded.knowledge)
    told = given.pop("public_images", None) is not None
    return replace(make_knowledge(given), public_images=public_images()["images"] if told else None)


TensorsByName = Mapping[str, State]
"""Tensors of files, by label of `ObservationMetadata.tensor_files`."""
PUBLIC, DISTILLED = "public images", "distilled by client {}"  # labels; those of checkpoints are their names


TensorFile = tuple[Path, Callable[[], State]]
"""A file of a run, and its reader, which raises InputError if the file is missing or damaged."""


@dataclass(frozen=True)
class ObservationMetadata:
    """An observation without the tensors.

    distilled: the clients of the round that distilled their images.
    """

    recorded: RecordedObservation
    architecture: Architecture
    distilled: tuple[int, ...] = ()

    @classmethod
    def read(cls, store: CellStore, key: ObservationKey) -> "ObservationMetadata":
        """Read all but the tensors; raise InputError if something is missing or damaged."""
        recorded = store.recorded(key)
        clients = dict.fromkeys((*recorded.clients, *recorded.round_clients))
        distilled = [client for client in clients if store.distilled_path(key.round, client).exists()]
        return cls(recorded, store.architecture(), tuple(distilled))

    def tensor_files(self, store: CellStore) -> dict[str, TensorFile]:
        """Return the files of the tensors, by label."""
        round, like = self.recorded.key.round, partial(state_of, self.architecture)
        found: dict[str, TensorFile] = {
            name: (store.checkpoint_path(name), partial(store.checkpoint, name, like)) for name in self.recorded.files
        }
        if self.recorded.knowledge.get("public_images") is not None:
            found[PUBLIC] = store.public_path, store.public_images
        for client in self.distilled:
            path = store.distilled_path(round, client)
            found[DISTILLED.format(client)] = path, partial(read_checkpoint, path)
        return found

    def observation(self, tensors: TensorsByName) -> Observation:
        net, key = self.architecture, self.recorded.key
        pairs = tuple((tensors[initial], tensors[final]) for initial, final in self.recorded.pairs)
        return Observation(net.build(), pairs, net.shape, key.round, key.client, key.threat_model)

    def granted(self, tensors: TensorsByName) -> Knowledge:
        return granted_in(self.recorded, lambda: tensors[PUBLIC])

    def distilled_images(self, tensors: TensorsByName, clients: Sequence[int]) -> Tensor | None:
        """Return the distilled images of these clients, (M, C, H, W) in [0, 1]; None if some trained on their own."""
        if not set(clients) <= set(self.distilled):
            return None
        return torch.cat([tensors[DISTILLED.format(client)]["images"] for client in clients])


@lru_cache(maxsize=1)  # of the cell whose jobs are being sent
def state_of(architecture: Architecture) -> State:
    """Return the model's state dict, for the names in it."""
    return architecture.build().state_dict()
