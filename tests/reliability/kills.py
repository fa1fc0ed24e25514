"""Runs that are killed, each in another way and at another moment, and resumed: `make kills COUNT=28`.

Whoever is killed, by what, and when, the seconds of the start among them: the same command has to go on, to the tables
of a run that nobody touched, without being slower for it, and of the first one no process may be left.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil
import yaml

SCENARIO = {
    "name": "killed",
    "data": {"public": 50, "test": 50},
    "partition": {"kind": "exact", "images": 4},
    "model": {"name": "mlp", "width": 64},
    "training": {"learning_rate": 0.1, "epochs": 2, "batch_size": 2},
    "federation": {"rounds": 2, "clients": 3},
    "adversary": {"threat_models": ["server", "observer"], "attacks": [{"name": "ntk", "iterations": 60}]},
    "sweep": {"seed": [0, 1, 2]},
    "output": {"figures": False},
}
COMMAND = [sys.executable, "-c", "from simulator.cli.main import main; main()", "run"]
TABLES = ("leakage", "samples", "utility", "clients")
NEVER_ALIKE = ["seconds", "pid", "worker"]  # columns
ALIVE = 10.0  # seconds after which none of its processes may be left
TWICE = 0.3  # seconds from one Ctrl-C to the next


class Killed:
    """A command that is under way, in a group of its own as a terminal has them, and all that it started."""

    def __init__(self, command: list[str | Path]):
        nowhere = subprocess.DEVNULL
        self.main = subprocess.Popen(command, start_new_session=True, stdout=nowhere, stderr=nowhere)
        self.seen: set[psutil.Process] = set()

    def look(self) -> list[psutil.Process]:
        """All that run now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen |= {psutil.Process(self.main.pid), *psutil.Process(self.main.pid).children(recursive=True)}
        return [process for process in self.seen if runs(process)]

    def wait_until(self, moment: float) -> None:
        while time.monotonic() < moment and self.main.poll() is None:
            self.look()
            time.sleep(0.05)

    def tell(self, number: int, everybody: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if everybody else os.kill)(self.main.pid, number)

    def kill_a_worker(self) -> None:
        workers = [process for process in self.look() if titled(process).startswith("ray::")]
        if workers:
            random.Random(len(workers)).choice(sorted(workers, key=lambda process: process.pid)).kill()


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def titled(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def ctrl_c_twice(killed: Killed) -> None:
    killed.tell(signal.SIGINT, everybody=True)
    time.sleep(TWICE)
    killed.tell(signal.SIGINT, everybody=True)


WAYS: dict[str, Callable[[Killed], None]] = {
    "SIGKILL": lambda killed: killed.tell(signal.SIGKILL),
    "SIGTERM": lambda killed: killed.tell(signal.SIGTERM),
    "Ctrl-C": lambda killed: killed.tell(signal.SIGINT, everybody=True),
    "Ctrl-C twice": ctrl_c_twice,
    "SIGKILL of the group": lambda killed: killed.tell(signal.SIGKILL, everybody=True),
    "SIGTERM of the group": lambda killed: killed.tell(signal.SIGTERM, everybody=True),
    "SIGKILL of one of Ray's workers": lambda killed: killed.kill_a_worker(),
}


@dataclass
class Outcome:
    """Of a way, over all its kills. moments: seconds after the start. slowest: seconds of the command that goes on."""

    moments: list[float] = field(default_factory=list)
    identical: int = 0
    left: int = 0
    slowest: float = 0.0


def tables(out: Path) -> dict[str, pd.DataFrame]:
    frames = {name: pd.read_parquet(out / f"{name}.parquet") for name in TABLES}
    return {name: frame.drop(columns=NEVER_ALIKE, errors="ignore") for name, frame in frames.items()}


def difference(out: Path, base: dict[str, pd.DataFrame]) -> str:
    """What is not as in the tables `base`; empty where nothing is."""
    try:
        found = tables(out)
    except OSError as error:
        return str(error)
    for name, frame in base.items():
        if len(found[name]) != len(frame):
            return f"{name}: {len(found[name])} rows, not {len(frame)}"
        columns = [column for column in frame if not found[name][column].equals(frame[column])]
        if columns or not found[name].equals(frame):
            others, own = found[name][columns].astype(str), frame[columns].astype(str)
            row = (others != own).any(axis=1).idxmax()
            return f"{name}, row {row}: {others.loc[row].to_dict()}, not {own.loc[row].to_dict()}"
    return ""


def timed(command: list[str | Path]) -> float:
    start = time.monotonic()
    subprocess.run(command, check=False, capture_output=True)
    return time.monotonic() - start


def one(command: list[str | Path], way: str, moment: float) -> bool:
    """Kill a command at that many seconds; whether something of it is left."""
    start, killed = time.monotonic(), Killed(command)
    killed.wait_until(start + moment)
    WAYS[way](killed)
    try:
        killed.main.wait(timeout=600 if "worker" in way else 60)
    except subprocess.TimeoutExpired:
        killed.main.kill()
    deadline = time.monotonic() + ALIVE
    while (left := killed.look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        process.kill()
    return bool(left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=28, help="kills, by all ways in turn")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw, outcomes = random.Random(given.seed), {way: Outcome() for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "s.yaml").write_text(yaml.safe_dump(SCENARIO))

        def command(out: str) -> list[str | Path]:
            return [*COMMAND, folder / "s.yaml", "--out", folder / out]

        whole = timed(command("base"))
        base = tables(folder / "base")
        for number, way in zip(range(given.count), [*WAYS] * given.count, strict=False):
            out, moment, outcome = f"out{number}", draw.uniform(0, 0.95 * whole), outcomes[way]
            outcome.moments.append(moment)
            outcome.left += one(command(out), way, moment)
            outcome.slowest = max(outcome.slowest, timed(command(out)))
            other = difference(folder / out, base)
            outcome.identical += not other
            print(f"{number:3} {way:32} after {moment:5.1f} s: {other or 'the same tables'}", flush=True)
    print(f"a run that nobody touches takes {whole:.0f} s")
    for way, of in outcomes.items():
        counts = f"{len(of.moments)} kills, {of.identical} with identical tables, {of.left} that left processes"
        print(f"{way:32} {counts} for {ALIVE:g} s; the slowest to go on took {of.slowest:.0f} s")
    sys.exit(any(len(one.moments) != one.identical or one.left for one in outcomes.values()))


if __name__ == "__main__":
    main()
