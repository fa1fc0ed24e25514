"""What a few whole runs give, as checksums: written before a change that is to change nothing, compared after it.

    python -m tests.benchmarks.golden --write FILE     before
    python -m tests.benchmarks.golden --compare FILE   after; names what differs, exit code 1 then

`make golden` does both with golden.json: it writes where there is no such file.

The runs: the quickstart; a sweep with a defense under secure aggregation; the audit of a recorded federation; every
attack on one pair of checkpoints. Compared are the rows of every table (seconds, process and worker aside), each
checkpoint, each reconstruction, and the journal by content. Three to four minutes of two cores.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from attacks import ATTACKS
from tests.simulator.audit.recorded import record

FEDSPILL = [sys.executable, "-c", "from simulator.cli.main import main; main()"]
NEVER_ALIKE = ["seconds", "client_seconds", "pid", "worker"]
SWEEP = {
    "name": "golden",
    "data": {"public": 50, "test": 50},
    "partition": {"kind": "exact", "images": 4},
    "model": {"name": "mlp", "width": 64},
    "training": {"learning_rate": 0.1, "epochs": 2, "batch_size": 2},
    "federation": {"rounds": 2, "clients": 3},
    "defenses": [{"name": "secure_aggregation"}],
    "adversary": {
        "threat_models": ["server", "observer", "history"],
        "attacks": [{"name": "span", "optional": True}, {"name": "ntk", "iterations": 60}],
    },
    "sweep": {"defenses": [[], ["secure_aggregation"], ["clipping", "noise"], ["mixup"]]},
}
OPTIONS = {"ntk": {"iterations": 60}, "gradient_matching": {"iterations": 20}, "kkt": {"iterations": 60}}
KNOWN = {"num_private": 12, "learning_rate": 0.05, "steps": 5, "labels": load_digits().target[:12].tolist()}


def runs(folder: Path) -> None:
    """Write the folder of every run into `folder`."""
    fedspill("run", Path(__file__).parents[2] / "scenarios" / "quickstart.yaml", "--out", folder / "quickstart")
    (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    fedspill("run", folder / "sweep.yaml", "--out", folder / "sweep")
    record(folder / "recording")
    fedspill(
        *("audit", folder / "recording", "--model", f"{folder / 'recording' / 'net.py'}:net", "--shape", "1,8,8"),
        *("--mean", "0.3", "--std", "0.4", "--out", folder / "audit"),
    )
    pair = folder / "pair"
    pair.mkdir()
    net, images = two_checkpoints(pair)
    np.savez(pair / "truth.npz", images=images)
    for name in sorted(ATTACKS):
        options = [text for key, value in OPTIONS.get(name, {}).items() for text in ("--option", f"{key}={value}")]
        known = [text for key, value in KNOWN.items() for text in ("--know", f"{key}={json.dumps(value)}")]
        fedspill(
            *(
                "attack",
                "--model",
                f"{net}:make",
                "--initial",
                pair / "a.safetensors",
                "--final",
                pair / "b.safetensors",
            ),
            *("--shape", "1,8,8", "--mean", "0.3", "--attack", name, *options, *(known if name != "span" else [])),
            *("--truth", pair / "truth.npz", "--out", folder / f"attack_{name}"),
        )


def two_checkpoints(folder: Path) -> tuple[Path, np.ndarray]:
    """A network's file and twelve digits, (12, 1, 8, 8); a.safetensors before and b.safetensors after five steps."""
    source = (
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), "
        "nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))\n"
    )
    (folder / "net.py").write_text(source)
    images = torch.tensor(load_digits().images[:12] / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(load_digits().target[:12])
    torch.manual_seed(3)
    layers = [nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = nn.Sequential(*layers)
    save_file({name: value.clone() for name, value in model.state_dict().items()}, folder / "a.safetensors")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(images - 0.3), labels).backward()
        optimizer.step()
    save_file(dict(model.state_dict()), folder / "b.safetensors")
    return folder / "net.py", images.numpy()


def fedspill(*arguments: object) -> None:
    """Run a command; its exit code and last lines are of no concern where its folder is compared."""
    subprocess.run([*FEDSPILL, *map(str, arguments)], capture_output=True, check=False)


def checksums(folder: Path) -> dict[str, str]:
    """Of every table, array file and journal below, by path."""
    return {str(path.relative_to(folder)): checksum(path) for path in sorted(folder.rglob("*")) if compared(path)}


def compared(path: Path) -> bool:
    return path.suffix in (".parquet", ".csv", ".npz", ".safetensors", ".jsonl") or path.name == "facts.json"


def checksum(path: Path) -> str:
    digest = hashlib.sha256()
    for part in content(path):
        digest.update(part)
    return digest.hexdigest()


def content(path: Path) -> Iterator[bytes]:
    """What has to be the same."""
    if path.suffix in (".parquet", ".csv"):
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        yield frame.drop(columns=NEVER_ALIKE, errors="ignore").to_csv(index=False).encode()
    elif path.suffix == ".safetensors":
        for name, tensor in sorted(load_file(path).items()):
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes()
    elif path.suffix == ".npz":
        with np.load(path) as arrays:
            for name in sorted(arrays):
                yield f"{name} {arrays[name].dtype} {arrays[name].shape}".encode() + arrays[name].tobytes()
    elif path.suffix == ".jsonl":
        yield "\n".join(sorted(map(told, path.read_text(encoding="utf-8").splitlines()))).encode()
    else:
        yield told(path.read_text(encoding="utf-8")).encode()


def told(text: str) -> str:
    """JSON without what no two runs share."""
    return json.dumps(without(json.loads(text)), sort_keys=True)


def without(value: object) -> object:
    if isinstance(value, dict):
        return {key: without(item) for key, item in value.items() if key not in (*NEVER_ALIKE, "crc32")}
    return [without(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--write", type=Path)
    chosen.add_argument("--compare", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the runs; default: one that is removed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        runs(folder)
        found = checksums(folder)
    if given.write:
        given.write.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} files")
        return
    before = json.loads(given.compare.read_text())
    different = sorted(name for name in before.keys() | found.keys() if before.get(name) != found.get(name))
    for name in different:
        print(name, "gone" if name not in found else "new" if name not in before else "differs")
    print(f"{len(found) - len(different)} of {len(before)} files the same")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
