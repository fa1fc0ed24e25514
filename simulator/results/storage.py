"""Which network the checkpoints of a cell belong to.

What the JSON file of an observation holds, checked when it is read: a run directory may come by mail.

The folders of a cell of a run: how its files are called, and which of them form an observation.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from attacks import InputError, Knowledge, Observation
from attacks.interface.observation import State
from clients.config import ModelConfig
from clients.defenses.differential_privacy.guarantee import Adversary, Guarantee
from clients.models import build_model
from clients.models.checkpoint import read_checkpoint
from simulator.results.disk import below, inside, write_bytes, writing
from simulator.results.formats import archive_state, load_state, read_json, save_state
from simulator.results.keys import ALL, ObservationKey, RecordedObservation
from simulator.results.knowledge_fields import make_knowledge

Side = Annotated[int, Field(ge=1, le=2**16)]  # of an image, of the outputs


@dataclass(frozen=True)
class _ArchitectureFile:
    """`architecture.json`: all that an attack needs of the scenario."""

    model: ModelConfig
    shape: tuple[Side, Side, Side]
    outputs: Side
    seed: int


ARCHITECTURE = TypeAdapter(_ArchitectureFile)


@dataclass(frozen=True)
class Architecture:
    """Which network the checkpoints of a cell belong to: what builds it anywhere, small and picklable.

    config: a `ModelConfig` as JSON. shape: (C, H, W) of its input.
    """

    config: str
    shape: tuple[int, int, int]
    outputs: int
    seed: int

    def model(self) -> nn.Module:
        """With weights that mean nothing."""
        return build_model(ModelConfig.model_validate_json(self.config), self.shape, self.outputs, self.seed)

    def observation(self, recorded: RecordedObservation, states: Mapping[str, State]) -> Observation:
        """states: of all of its files, by their names."""
        key, pairs = recorded.key, tuple((states[initial], states[final]) for initial, final in recorded.pairs)
        return Observation(self.model(), pairs, self.shape, key.round, key.client, key.threat_model)


class ObservationFile(BaseModel):
    """As `CellStore.save_observation` writes it. knowledge: fields of `Knowledge`, its own checks come later."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    round: int
    client: int
    threat_model: str
    clients: tuple[int, ...]
    round_clients: tuple[int, ...]
    pairs: tuple[tuple[str, str], ...] = Field(min_length=1)
    knowledge: dict[str, Any]
    defense_facts: dict[str, Any] = {}
    adversary: Adversary = "server"
    guarantees: tuple[Guarantee, ...] = ()

    @classmethod
    def of(cls, content: dict[str, Any], path: str) -> "ObservationFile":
        """InputError, with the name of the file, for what is no observation."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise InputError(f"{path!r} is damaged: {where}: {wrong['msg'].lower()}") from None

    @property
    def key(self) -> ObservationKey:
        return ObservationKey(self.round, self.client, self.threat_model)

    @property
    def recorded(self) -> RecordedObservation:
        """What was written down of it, without what was granted."""
        return RecordedObservation(
            self.key, self.pairs, self.clients, self.round_clients, self.defense_facts, self.adversary, self.guarantees
        )


ARCHITECTURE_FILE = "architecture.json"


class CellStore:
    """The checkpoints, observations and reconstructions of one cell of a run, under `root`.

    files: the checksums of what this process has written there, by their names below the run's folder.
    """

    def __init__(self, path: Path, cell: str = "", archive: bool = False):
        """path: of the run, whose cells have folders of their own where there is a sweep. archive: checkpoints are read
        much later if at all, and nobody asks for their checksums: writing them has to cost as little as can be."""
        self.path, self.root = path, below(path, path / "cells" / cell) if cell else path
        self.checkpoints = self.root / "checkpoints"
        self.reconstructions = self.root / "reconstructions"
        self.truth = self.root / "truth"
        self.archive = archive
        self.files: dict[str, str] = {}

    def create(self, model: ModelConfig, shape: tuple[int, int, int], outputs: int, seed: int) -> None:
        """Make the folders and write down the architecture, which is all that an attack needs of the scenario."""
        for folder in (self.checkpoints, self.reconstructions):
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        architecture = model.without_initial_weights()  # those come from the checkpoints
        content = {"model": architecture.model_dump(mode="json"), "shape": shape, "outputs": outputs, "seed": seed}
        self._note(self.checkpoints / ARCHITECTURE_FILE, json.dumps(content, indent=1).encode())

    def save_global(self, round: int, state: State) -> str:
        """The global checkpoint after `round` (0: the one that starts the federation)."""
        return self._save(self.global_name(round), state)

    def save_sent(self, round: int, client: int, state: State) -> str:
        """What a client was sent in a round, or all of them (ALL), where that is no global checkpoint of a round."""
        return self._save(f"sent_{'all' if client == ALL else f'{client:02d}'}_round_{round:04d}.safetensors", state)

    def save_client(self, round: int, client: int, state: State) -> str:
        return self._save(self.client_name(round, client), state)

    def save_sum(self, round: int, state: State) -> str:
        """What secure aggregation shows the server of a round: the mean of the checkpoints that clients returned."""
        return self._save(self.sum_name(round), state)

    def global_name(self, round: int) -> str:
        return f"global_{round:04d}.safetensors"

    def sum_name(self, round: int) -> str:
        return f"sum_{round:04d}.safetensors"

    def client_name(self, round: int, client: int) -> str:
        """The file of what a client returned."""
        return f"client_{client:02d}_round_{round:04d}.safetensors"

    def save_distilled(self, round: int, client: int, images: Tensor) -> None:
        """What a client trained on instead of its images, (M, C, H, W) in [0, 1]: for the scorer, not for an attack."""
        with writing(self.truth):
            self.truth.mkdir(exist_ok=True)
        self._note_state(self.distilled_path(round, client), {"images": images})

    def distilled_path(self, round: int, client: int) -> Path:
        return inside(self.path, self.truth / f"distilled_client_{client:02d}_round_{round:04d}.safetensors")

    def load_distilled(self, round: int, clients: Sequence[int]) -> Tensor | None:
        """The distilled images of all these clients; None where some trained on their own."""
        paths = [self.distilled_path(round, client) for client in clients]
        if not all(path.exists() for path in paths):
            return None
        return torch.cat([load_state(path)["images"] for path in paths])

    def save_public_images(self, images: Tensor) -> None:
        self._note_state(self.public_path, {"images": images})

    @property
    def public_path(self) -> Path:
        return inside(self.path, self.checkpoints / "public_images.safetensors")

    def save_observation(self, recorded: RecordedObservation, knowledge: Knowledge) -> None:
        """Write down which checkpoint files form an observation, whose images they hold, and what was granted."""
        content = {
            **recorded.key.columns,
            "clients": recorded.clients,
            "round_clients": recorded.round_clients,
            "pairs": recorded.pairs,
            "knowledge": knowledge.given(),
            "defense_facts": recorded.defense_facts,
            "adversary": recorded.adversary,
            "guarantees": [asdict(guarantee) for guarantee in recorded.guarantees],
        }
        self._note(self.observation_path(recorded.key), json.dumps(content, indent=1).encode())

    def observation_path(self, key: ObservationKey) -> Path:
        return inside(self.path, self.checkpoints / f"{key.name}.json")

    def observation_keys(self) -> list[ObservationKey]:
        """Those of all observations, in the order of their files."""
        paths = [inside(self.path, path) for path in sorted(self.checkpoints.glob("round_*.json"))]
        return [ObservationFile.of(read_json(path), str(path)).key for path in paths]

    def recorded(self, key: ObservationKey) -> RecordedObservation:
        """What was written down of an observation: the names of its files, and whose images they hold."""
        return replace(self._read_observation(key).recorded, key=key)

    def load(self, key: ObservationKey) -> tuple[Observation, Knowledge]:
        """What the adversary saw and was granted; needs nothing but the checkpoints folder."""
        recorded, architecture = self.recorded(key), self.architecture()
        like = architecture.model().state_dict()
        states = {name: self.checkpoint(name, like) for name in recorded.files}
        return architecture.observation(recorded, states), self.granted(key)

    def checkpoint_path(self, name: str) -> Path:
        """name: as an observation has it. Audits name the checkpoints of their recording, by full paths: those have to
        be files of a folder `checkpoints`."""
        path = self.checkpoints / name
        if os.path.isabs(name) and path.parent.name == self.checkpoints.name:
            return inside(path.parent, path)
        return inside(self.path, path)

    def checkpoint(self, name: str, like: State) -> State:
        """The tensors of a checkpoint. name: as an observation has it. like: the model's state dict."""
        path = self.checkpoint_path(name)
        if not os.path.exists(path):  # also where the name is too long for a disk
            raise InputError(
                f"checkpoint {str(path)!r} does not exist: output.keep {{last: …}} keeps the last rounds only"
            )
        return read_checkpoint(path, like)

    def remove_checkpoint(self, name: str) -> None:
        """Where it can be removed: what stays costs room and nothing else."""
        with contextlib.suppress(OSError):
            (self.checkpoints / name).unlink()

    def public_images(self) -> State:
        """{"images": (P, C, H, W)}, those that adversaries were given."""
        found = load_state(self.public_path)
        if "images" not in found:
            raise InputError(f"{str(self.public_path)!r} has no images: the run directory is damaged")
        return found

    def granted(self, key: ObservationKey) -> Knowledge:
        """What the adversary of an observation was told."""
        knowledge, public = self.told(key)
        return replace(knowledge, public_images=self.public_images()["images"]) if public else knowledge

    def told(self, key: ObservationKey) -> tuple[Knowledge, bool]:
        """(what the adversary of an observation was told, but for public images; whether it has those)."""
        given = self._read_observation(key).knowledge
        knowledge = make_knowledge({name: value for name, value in given.items() if name != "public_images"})
        return knowledge, "public_images" in given

    @property
    def architecture_path(self) -> Path:
        return inside(self.path, self.checkpoints / ARCHITECTURE_FILE)

    def architecture(self) -> Architecture:
        path = self.architecture_path
        try:
            found = ARCHITECTURE.validate_json(json.dumps(read_json(path)))
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise InputError(f"{str(path)!r} is damaged: {where}: {wrong['msg'].lower()}") from None
        return Architecture(found.model.model_dump_json(), found.shape, found.outputs, found.seed)

    def reconstruction_path(self, key: ObservationKey, attack: str) -> Path:
        return inside(self.path, self.reconstructions / f"{key.name}_{attack}.npz")

    def membership_path(self, key: ObservationKey) -> Path:
        """The scores of candidate images."""
        return inside(self.path, self.root / "membership" / f"{key.name}.csv")

    def _read_observation(self, key: ObservationKey) -> ObservationFile:
        path = self.observation_path(key)
        if not os.path.exists(path):  # also where the name is too long for a disk
            known = ", ".join(other.name for other in self.observation_keys()[:6]) or "none"
            raise InputError(f"no observation {key.name!r} in {str(self.root)!r}; recorded: {known}")
        return ObservationFile.of(read_json(path), str(path))

    def _save(self, name: str, state: State) -> str:
        self._note_state(self.checkpoints / name, state)
        return name

    def _note_state(self, path: Path, state: State) -> None:
        if self.archive:
            archive_state(path, state)
        else:
            self.files[path.relative_to(self.path).as_posix()] = save_state(path, state)

    def _note(self, path: Path, content: bytes) -> None:
        self.files[path.relative_to(self.path).as_posix()] = write_bytes(path, content)
