"""Run directories as an enemy would make them: each way to break one changes a valid one in place."""

import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pyarrow import parquet

from tests.fuzz.run_folders import write_run

DEEP = "deep: " + "[" * 5000
BOMB = "bomb:\n  a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"  {name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
OUTSIDE = ["../../dev/zero", "/dev/zero", "/etc/passwd", "../" * 2000 + "dev/zero", "a\0b", "x" * 300, "..", "", "."]
WORDS = [
    "[/x]",
    "[bold]",
    "a\x1b]0;PWNED\x07[/bold]",
    "\x1b[2J",
    "\x9b2J",
    "=cmd|calc!A1",
    "/../../x",
    "../x",
    "\u202e",
]
LINKED = ["/dev/zero", "/etc/passwd", "/", "/nowhere"]
Break = Callable[[Path, random.Random], None]


def bomb(root: Path, rng: random.Random) -> None:
    """A description that is small on the disk alone."""
    with (root / "scenario.yaml").open("a") as file:
        file.write(rng.choice([BOMB, DEEP, "x: &x [*x]\n", "x: " + "1, " * 10**4, "versions: {}\n"]))


def sweep(root: Path, rng: random.Random) -> None:
    """Values of a sweep, in the description and in the tables."""
    words = rng.sample(WORDS, 2)
    content = yaml.safe_load((root / "scenario.yaml").read_text())
    content["scenario"]["sweep"] = {"data.label_column": words}
    (root / "scenario.yaml").write_text(yaml.safe_dump(content))
    for path in sorted(root.glob("*.parquet")):
        frame = read(path)
        frame["data.label_column"] = [words[row % 2] for row in range(len(frame))]
        path.write_bytes(packed(frame))


def words(root: Path, rng: random.Random) -> None:
    """Names in a table that a terminal or a file system obeys."""
    frame = read(root / "leakage.parquet")
    column = rng.choice(["attack", "threat_model", "detail", "status", "target", "defense", "knowledge"])
    frame[column] = frame[column].astype(object)
    frame.loc[rng.randrange(len(frame)), column] = rng.choice(WORDS)
    (root / "leakage.parquet").write_bytes(packed(frame))


def rows(root: Path, rng: random.Random) -> None:
    """A table that unpacks to hundreds of megabytes: the same row over and over."""
    frame = read(root / "leakage.parquet")
    (root / "leakage.parquet").write_bytes(packed(frame.iloc[[0] * 60_000]))


def outside(root: Path, rng: random.Random) -> None:
    """Names of files elsewhere, in the journal or in an observation."""
    name = rng.choice(OUTSIDE)
    if rng.random() < 0.5:
        change_journal(root, lambda entry: entry | {"files": {name: "00000000"}} if "done" in entry else entry)
    else:
        path = rng.choice(sorted((root / "checkpoints").glob("round_*.json")))
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pairs": [[name, name]]}))


def linked(root: Path, rng: random.Random) -> None:
    """A link that leads out in the place of a file or of a folder."""
    path = rng.choice(sorted(path for path in root.rglob("*") if path.is_file()))
    path.unlink()
    path.symlink_to(rng.choice(LINKED))


def nested(root: Path, rng: random.Random) -> None:
    """JSON that is deeper than its reader."""
    path = rng.choice(sorted(root.rglob("*.json")))
    path.write_text("[" * 100_000)


BREAKS: tuple[Break, ...] = (bomb, sweep, words, rows, outside, linked, nested)


def mailed_runs(folder: Path, rng: random.Random) -> Iterator[Path]:
    """Run directories, each broken in one or two of these ways."""
    write_run(folder / "valid")
    content = {path.relative_to(folder / "valid"): path.read_bytes() for path in files_of(folder / "valid")}
    root = folder / "mailed"
    while True:
        for path in sorted(root.rglob("*"), reverse=True):  # links themselves, never what they lead to
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for name, old in content.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(old)
        for break_it in rng.sample(BREAKS, rng.choice([1, 1, 2])):
            try:
                break_it(root, rng)
            except (OSError, ValueError, KeyError, RecursionError):  # what the first one left cannot be broken so
                continue
        yield root


def read(path: Path) -> pd.DataFrame:
    """ValueError where the table is a bomb already: it would go off here."""
    if parquet.read_metadata(path).num_rows > 100:
        raise ValueError("broken in another way")
    return pd.read_parquet(path)


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def change_journal(root: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Its entries changed."""
    lines = (root / "ledger.jsonl").read_text().splitlines()
    (root / "ledger.jsonl").write_text("".join(json.dumps(change(json.loads(line))) + "\n" for line in lines))


def packed(frame: pd.DataFrame) -> bytes:
    content = io.BytesIO()
    frame.to_parquet(content, index=False)
    return content.getvalue()
