"""The files of a run: checkpoints as safetensors, observations as JSON beside them, reconstructions as npz."""

import contextlib
import errno
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attacks import InputError, Knowledge, Observation, Reconstruction
from attacks.interface.observation import State
from clients.config import ModelConfig, as_json
from clients.data.files import npz_array
from clients.models import build_model
from clients.models.checkpoint_file import read_checkpoint
from simulator.results.disk import checksum_of, give_back_memory, replacing, write_atomically, write_bytes, writing
from simulator.results.keys import ALL, ObservationKey, RecordedObservation
from simulator.results.observation_file import ObservationFile
from simulator.scenario.knowledge_fields import KNOWLEDGE_FIELDS

Side = Annotated[int, Field(ge=1, le=2**16)]  # of an image, of the outputs


class _KnowledgeFields(Knowledge):
    """Knowledge as pydantic checks it: the tensor of public images is no JSON value and passes unseen."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)


@dataclass(frozen=True)
class _ArchitectureFile:
    """`architecture.json`: all that an attack needs of the scenario."""

    model: ModelConfig
    shape: tuple[Side, Side, Side]
    outputs: Side
    seed: int


ARCHITECTURE = TypeAdapter(_ArchitectureFile)
KNOWLEDGE = TypeAdapter(_KnowledgeFields)
PER_CHANNEL = ("pixel_mean", "pixel_std")  # fields of knowledge


def check_out(path: Path) -> None:
    """Raise InputError where no folder can be at `path`. Nothing is made: what follows may still find bad input."""
    there = next(part for part in (path.absolute(), *path.absolute().parents) if os.path.lexists(part))
    if not there.is_dir():
        raise InputError(f"{str(there)!r} is a file: choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{str(there)!r} cannot be written: choose another --out")


def make_out(path: Path) -> None:
    """The folder, where it is not there yet; InputError where that does not work."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {str(path)!r} cannot be made ({error.strerror}): choose another --out") from None


def write_json(path: Path, facts: dict[str, Any]) -> None:
    """JSON has no NaN and no Inf: null stands for them."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}
    write_atomically(path, json.dumps(finite, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """An object that a run wrote; InputError where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{str(path)!r} does not exist: the run directory is not complete") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}): the run directory is damaged") from None
    if not isinstance(content, dict):
        raise InputError(f"{str(path)!r} holds a {type(content).__name__}, no object: the run directory is damaged")
    return content


def save_state(path: Path, state: State) -> str:
    """As safetensors. Returns the checksum. A reader finds the old file or the new one; DiskError where it cannot be
    written, and nothing of it is left."""
    with _written(path, state) as partial:
        return checksum_of(partial)


def archive_state(path: Path, state: State) -> None:
    """As `save_state`, for what is read much later if at all: the system's memory does not hold it, and nobody asks for
    its checksum."""
    with _written(path, state) as partial:
        give_back_memory(partial)


@contextlib.contextmanager
def _written(path: Path, state: State) -> Iterator[Path]:
    """The file of a state dict before it takes its place."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    with replacing(path) as partial:
        try:
            save_file(tensors, partial)
        except SafetensorError as error:
            said = re.search(r"os error (\d+)", str(error))
            number = int(said[1]) if said else errno.EIO
            raise OSError(number, os.strerror(number)) from error
        yield partial


def load_state(path: Path) -> State:
    """A state dict from a safetensors file; pickles are never loaded."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise InputError(f"checkpoint {str(path)!r} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"checkpoint {str(path)!r} is no safetensors file ({error})") from None


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


class CellStore:
    """The checkpoints, observations and reconstructions of one cell of a run, under `root`.

    files: the checksums of what this process has written there, by their names below the run's folder.
    """

    def __init__(self, path: Path, cell: str = "", archive: bool = False):
        """path: of the run, whose cells have folders of their own where there is a sweep. archive: checkpoints are read
        much later if at all, and nobody asks for their checksums: writing them has to cost as little as can be."""
        self.path, self.root = path, path / "cells" / cell if cell else path
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
        self._note(self.checkpoints / "architecture.json", json.dumps(content, indent=1).encode())

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
        return self.truth / f"distilled_client_{client:02d}_round_{round:04d}.safetensors"

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
        return self.checkpoints / "public_images.safetensors"

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
        return self.checkpoints / f"{key.name}.json"

    def observation_keys(self) -> list[ObservationKey]:
        """Those of all observations, in the order of their files."""
        paths = sorted(self.checkpoints.glob("round_*.json"))
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

    def checkpoint(self, name: str, like: State) -> State:
        """The tensors of a checkpoint. name: as an observation has it. like: the model's state dict."""
        path = self.checkpoints / name
        if not path.exists():
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

    def architecture(self) -> Architecture:
        path = self.checkpoints / "architecture.json"
        try:
            found = ARCHITECTURE.validate_json(json.dumps(read_json(path)))
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"]))
            raise InputError(f"{str(path)!r} is damaged: {where}: {wrong['msg'].lower()}") from None
        return Architecture(found.model.model_dump_json(), found.shape, found.outputs, found.seed)

    def reconstruction_path(self, key: ObservationKey, attack: str) -> Path:
        return self.reconstructions / f"{key.name}_{attack}.npz"

    def membership_path(self, key: ObservationKey) -> Path:
        """The scores of candidate images."""
        return self.root / "membership" / f"{key.name}.csv"

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


def make_knowledge(given: dict[str, Any]) -> Knowledge:
    """Knowledge from plain values, as `given()` wrote them or a user typed them; InputError names a wrong one."""
    one_channel = {name: [given[name]] for name in PER_CHANNEL if isinstance(given.get(name), int | float)}
    values = given | one_channel
    text = as_json(values, "knowledge")
    try:
        return Knowledge(**vars(KNOWLEDGE.validate_json(text, strict=True)))
    except ValidationError as error:
        wrong = error.errors()[0]
        if not wrong["loc"]:  # Knowledge itself refused
            raise InputError(wrong["msg"].removeprefix("Value error, ")) from None
        field = wrong["loc"][0]
        example = KNOWLEDGE_FIELDS[str(field)].example
        raise InputError(
            f"knowledge {field} is {given[str(field)]!r}: {wrong['msg'].lower()}; write it like {example}"
        ) from None


def reconstruction_file(found: Reconstruction) -> bytes:
    """An npz file. images: (M, C, H, W) pixels in [0, 1], best first; held: (H, C, H, W), the candidates that the
    attack would not vouch for; residual: (M,); duals, groups (M,) of views of one image, and features (F, …), where
    there are any."""
    pixels, held = (images.numpy().astype(np.float32) for images in (found.pixels(), found.held_pixels()))
    arrays: dict[str, Any] = {"images": pixels, "held": held, "residual": found.residual.numpy()}
    if found.duals is not None:
        arrays["duals"] = found.duals.numpy()
    if found.groups is not None:
        arrays["groups"] = found.groups.numpy()
    if found.features is not None:
        arrays["features"] = found.features.numpy()
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def load_images(path: Path) -> Tensor:
    """Reconstructed images in [0, 1], (M, C, H, W)."""
    images = npz_array(path, "images", "reconstructions")
    if images.ndim != 4 or images.dtype.kind != "f":
        raise InputError(f"reconstructions {str(path)!r} are {images.dtype} {images.shape}: (M, C, H, W) is expected")
    return torch.from_numpy(images.astype(np.float32))
