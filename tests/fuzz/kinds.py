"""The kinds of input: for each the valid ones to start from, and what reads them."""

import copy
import functools
import gzip
import io
import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save
from torch import nn

from attacks import Knowledge, Observation, get_attack
from attacks.membership import MembershipTest
from clients.config import DataConfig
from clients.data import Dataset
from clients.data.sources import folder as class_folders
from clients.data.sources import idx, npz
from clients.models.checkpoint import read_checkpoint
from simulator.audit.recording import Recording
from simulator.evaluation.image_files import read_images, read_truth
from simulator.run.plan import make_plan
from simulator.scenario.benchmark import load_any
from simulator.scenario.scenario import load_scenario
from tests.fuzz.mailed_runs import mailed_runs
from tests.fuzz.mutations import VALUES, leaves_of, mutated, repacked, with_odd_values
from tests.fuzz.reported import report_it
from tests.fuzz.run_folders import read_run, write_recording, write_run
from tests.fuzz.tensors import of_odd_tensors

PROJECT = Path(__file__).resolve().parents[2]
SHAPE = (1, 8, 8)


@dataclass(frozen=True)
class Kind:
    """inputs: an endless stream of broken input, written below a folder. read: what has to come to an end with them."""

    inputs: Callable[[Path, random.Random], Iterator[Path | str]]
    read: Callable[[Path | str], object]


@functools.cache
def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)).eval()


def of_files(valid: dict[str, bytes]) -> Callable[[Path, random.Random], Iterator[Path]]:
    """One file at a time, broken, under its own name."""

    def inputs(folder: Path, rng: random.Random) -> Iterator[Path]:
        while True:
            name = rng.choice(sorted(valid))
            path = folder / name
            path.write_bytes(broken_file(path, valid[name], rng))
            yield path

    return inputs


def of_folder(write: Callable[[Path], None], broken: str = "*") -> Callable[[Path, random.Random], Iterator[Path]]:
    """A folder of files, of which one to three are broken: the same folder with the old files back for each input.

    JSON and YAML are broken half of the time as trees.
    """

    def inputs(folder: Path, rng: random.Random) -> Iterator[Path]:
        root = folder / "root"
        write(root)
        valid = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        chosen = [path for path in valid if path.match(broken)]
        while True:
            for path in rng.sample(chosen, min(len(chosen), rng.choice([1, 1, 1, 3]))):
                path.write_bytes(broken_file(path, valid[path], rng))
            yield root
            for path in [path for path in root.rglob("*") if path.is_file() and path not in valid]:
                path.unlink()
            for path, content in valid.items():
                if not path.exists() or path.read_bytes() != content:
                    path.write_bytes(content)

    return inputs


def broken_file(path: Path, content: bytes, rng: random.Random) -> bytes:
    if path.suffix == ".json" and rng.random() < 0.5:
        return json.dumps(with_odd_values(json.loads(content), rng)).encode()
    if path.suffix == ".yaml" and rng.random() < 0.5:
        return yaml.safe_dump(with_odd_values(yaml.safe_load(content), rng)).encode()
    if path.suffix in (".pt", ".safetensors", ".npz") and rng.random() < 0.4:
        return of_odd_tensors(path, content, rng)
    if (path.suffix == ".jsonl" or content[:2] in (b"PK", b"\x1f\x8b")) and rng.random() < 0.6:
        return repacked(content, rng)
    return mutated(content, rng)


def scenarios(folder: Path, rng: random.Random, names: str = "*") -> Iterator[Path]:
    """The scenarios of the repository, as text and as trees."""
    texts = [path.read_bytes() for path in sorted((PROJECT / "scenarios").glob(f"{names}.yaml"))]
    trees = [yaml.safe_load(text) for text in texts]
    every = load_scenario(PROJECT / "scenarios" / "quickstart.yaml").model_dump(mode="json")  # with every key there is
    path = folder / "scenario.yaml"
    while True:
        if rng.random() < 0.5:
            path.write_bytes(mutated(rng.choice(texts), rng))
        else:
            tree = with_odd_values(copy.deepcopy(rng.choice([*trees, every, every])), rng)
            path.write_text(yaml.safe_dump(tree, allow_unicode=True), errors="surrogatepass")
        yield path


def settings(folder: Path, rng: random.Random) -> Iterator[str]:
    """`--set KEY=VALUE` for every key there is, broken as a text half of the time."""
    every = load_scenario(PROJECT / "scenarios" / "quickstart.yaml").model_dump(mode="json")
    keys = [".".join(map(str, path)) for path in leaves_of(every)]
    while True:
        value = rng.choice(VALUES)
        text = (
            f"{rng.choice(keys)}={yaml.safe_dump(value, default_flow_style=True).removesuffix('...' + chr(10)).strip()}"
        )
        yield mutated(text.encode(), rng).decode(errors="replace") if rng.random() < 0.5 else text


def planned(path: Path | str) -> object:
    """As `check` reads a scenario, but for the measurement of what it costs."""
    return make_plan(load_any(Path(path), None, []), Path(path).parent / "out")


def checkpoint(path: Path | str) -> object:
    """As `attack` and `member` read and use a checkpoint."""
    like, pixels = network().state_dict(), torch.from_numpy(images(5))
    state = read_checkpoint(Path(path), like)
    sent = {name: value.flip(-1) for name, value in like.items()}  # an update of zero would be refused
    observation = Observation(network(), ((sent, state),), SHAPE)
    told = Knowledge(num_private=2, public_images=pixels)
    get_attack("best_public").run(observation, told, torch.Generator())
    return MembershipTest.of(observation, told, pixels).residual(pixels)


def packed(*arrays: np.ndarray, **named: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez(content, *arrays, **named)
    return content.getvalue()


def pickled(value: object, **options: object) -> bytes:
    content = io.BytesIO()
    torch.save(value, content, **options)
    return content.getvalue()


def checkpoints() -> dict[str, dict[str, bytes]]:
    """Valid checkpoints by format."""
    state = network().state_dict()
    arrays = [value.numpy() for value in state.values()]
    return {
        "safetensors": {"a.safetensors": save(state)},
        "pt": {
            "a.pt": pickled(state),
            "b.pt": pickled({"state_dict": state, "epoch": 3}),
            "c.pt": pickled(state, _use_new_zipfile_serialization=False),
        },
        "npz checkpoint": {"a.npz": packed(*arrays), "b.npz": packed(**{k: v.numpy() for k, v in state.items()})},
    }


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).random((count, *SHAPE), dtype=np.float32)


def own_data() -> dict[str, bytes]:
    labels, pixels = np.arange(12) % 3, (images(12) * 255).astype(np.uint8)
    return {
        "a.npz": packed(x_train=images(12), y_train=labels),
        "b.npz": packed(
            **{"x_train": pixels[:, 0], "y_train": labels, "x_test": pixels[:3, 0], "y_test": labels[:3]},
            class_names=np.array(list("abc")),
        ),
        "c.npz": packed(x_train=pixels.transpose(0, 2, 3, 1), y_train=np.array(list("abcabcabcabc"))),
    }


def read_own_data(path: Path | str) -> object:
    return decoded(npz.load(DataConfig(name="npz", root=str(path))))


def decoded(data: Dataset) -> object:
    return [split.images(np.arange(len(split.labels))) for split in (data.train, data.test)]


def write_idx(ending: str, root: Path) -> None:
    root.mkdir()
    for part, count in (("train", 9), ("t10k", 4)):
        for name, array in (("images-idx3", images(count)[:, 0]), ("labels-idx1", np.arange(count))):
            content = struct.pack(f">{1 + array.ndim}i", 2048 + array.ndim, *array.shape) + array.astype("u1").tobytes()
            (root / f"{part}-{name}-ubyte{ending}").write_bytes(gzip.compress(content) if ending else content)


def write_pictures(root: Path) -> None:
    endings = (".png", ".jpg", ".bmp", ".gif", ".webp", ".tif", ".pgm")
    for label in "ab":
        (root / label).mkdir(parents=True)
        for number, ending in enumerate(endings):
            Image.fromarray((images(7)[number, 0] * 255).astype(np.uint8)).save(root / label / f"{number}{ending}")


KINDS: dict[str, Kind] = {
    "scenario": Kind(scenarios, lambda path: load_any(Path(path), None, [])),
    "plan": Kind(functools.partial(scenarios, names="quickstart"), planned),
    "set": Kind(settings, lambda text: load_scenario(PROJECT / "scenarios" / "quickstart.yaml", [str(text)])),
    **{name: Kind(of_files(valid), checkpoint) for name, valid in checkpoints().items()},
    "npz data": Kind(of_files(own_data()), read_own_data),
    "candidates": Kind(of_files({"c.npz": packed(images=images(5))}), lambda path: read_truth(Path(path), SHAPE)),
    "truth": Kind(of_files({"t.npz": packed(images=images(5))}), lambda path: read_images(Path(path), SHAPE, "truth")),
    "idx": Kind(of_folder(functools.partial(write_idx, "")), lambda root: decoded(idx.load_mnist(of("mnist", root)))),
    "idx.gz": Kind(
        of_folder(functools.partial(write_idx, ".gz")), lambda root: decoded(idx.load_mnist(of("mnist", root)))
    ),
    "pictures": Kind(of_folder(write_pictures), lambda root: decoded(class_folders.load(of("folder", root)))),
    "run folder": Kind(of_folder(write_run), read_run),
    "mailed run": Kind(mailed_runs, report_it),
    "recording": Kind(of_folder(write_recording, "*.json"), lambda root: read_recording(Path(root))),
}


def of(name: str, root: Path | str) -> DataConfig:
    return DataConfig(name=name, root=str(root))


def read_recording(root: Path) -> object:
    recording = Recording(root)
    return [(recording.pairs(key), recording.granted(key)) for key in recording.observations()]


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
