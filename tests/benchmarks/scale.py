"""What many rounds and many clients cost: `python -m tests.benchmarks.scale --rounds 100 --clients 50 --width 1560`.

A run of its own in a process of its own, whose memory is looked at while it goes on. Width 1560 is a network of 10 MB
on the 8x8 digits, width 1 one of next to nothing. Every update of every round is attacked, by what costs nothing: what
is measured is the way from a reply to a row.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import yaml

from simulator.results.ledger import JOURNAL

COMMAND = [sys.executable, "-c", "from simulator.cli.main import main; main()", "run"]
KINDS = {"ClientActor": "client", "run_remotely": "attack", "IDLE": "attack"}  # in the names of Ray's workers
SETTLED = 3  # rounds after which memory should not grow


@dataclass
class Seen:
    """Of a run. peaks: the largest MiB of one process, by its kind and the round it was seen in. disk: MiB at most.
    busy: processor seconds of each process, by its kind and number."""

    seconds: float = 0.0
    rows: int = 0
    code: int = 0
    disk: float = 0.0
    together: float = 0.0  # the largest sum over all processes
    peaks: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    busy: dict[tuple[str, int], float] = field(default_factory=dict)

    def each(self, kind: str) -> float:
        """Processor seconds that all processes of a kind took for an update, their start included."""
        return sum(seconds for (of, _), seconds in self.busy.items() if of == kind) / max(1, self.rows)

    def slope(self, kind: str) -> float:
        """MiB that a process of this kind grows by in a round, by least squares, once it has settled."""
        after = {round: peak for round, peak in self.peaks[kind].items() if round > SETTLED}
        return float(np.polyfit(list(after), list(after.values()), 1)[0]) if len(after) > 1 else float("nan")


def scenario(rounds: int, clients: int, width: int, diagnostics: bool) -> dict:
    return {
        "name": "scale",
        "data": {"public": 50, "test": 50},
        "partition": {"kind": "exact", "images": 1},
        "model": {"name": "mlp", "width": width},
        "training": {"epochs": 1, "batch_size": 1},
        "federation": {"rounds": rounds, "clients": clients, "timeout": 3600},
        "adversary": {"attacks": [{"name": "mean_image"}]},
        "output": {"figures": False, "diagnostics": diagnostics, "keep": {"last": 1}},
    }


def measure(content: dict, folder: Path) -> Seen:
    """Run a scenario below `folder`, and look at it until it ends."""
    (folder / "scale.yaml").write_text(yaml.safe_dump(content))
    seen, start, out = Seen(), time.perf_counter(), folder / "out"
    command = [*COMMAND, str(folder / "scale.yaml"), "--out", str(out)]
    log = (folder / "log.txt").open("w")
    run = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    ended = threading.Event()
    watcher = threading.Thread(target=watch, args=(psutil.Process(run.pid), out, seen, ended))
    watcher.start()
    seen.code = run.wait()
    ended.set()
    watcher.join()
    seen.seconds = time.perf_counter() - start
    seen.rows = sum(entry.get("table") == "leakage" for entry in entries(out / JOURNAL)[0])
    return seen


def watch(process: psutil.Process, out: Path, seen: Seen, ended: threading.Event) -> None:
    round = read = 0
    while not ended.wait(1.0):
        found, read = entries(out / JOURNAL, read)
        round = max([round, *(entry["row"]["round"] for entry in found if "row" in entry)])
        together = 0.0
        with contextlib.suppress(psutil.Error):
            for one in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    size = own_memory(one)
                    together += size
                    kind, times = kind_of(one, process), one.cpu_times()
                    if times.user + times.system > 0:
                        seen.busy[kind or "others", one.pid] = times.user + times.system
                    if kind is not None:
                        peaks = seen.peaks[kind]
                        peaks[round] = max(peaks.get(round, 0.0), size)
        seen.together = max(seen.together, together)
        with contextlib.suppress(OSError):
            seen.disk = max(seen.disk, sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 2**20)


def own_memory(process: psutil.Process) -> float:
    """MiB that nobody shares: neither libraries nor Ray's object store."""
    memory = process.memory_info()
    return float(memory.rss - getattr(memory, "shared", 0)) / 2**20


def kind_of(process: psutil.Process, main: psutil.Process) -> str | None:
    if process.pid == main.pid:
        return "server"
    title = " ".join(process.cmdline())
    return next((kind for name, kind in KINDS.items() if title.startswith("ray::") and name in title), None)


def entries(journal: Path, start: int = 0) -> tuple[list[dict], int]:
    """What was written after so many bytes, and how many there are now; not half of a line."""
    if not journal.exists():
        return [], start
    with journal.open("rb") as file:
        file.seek(start)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], start + len(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--width", type=int, default=1560)
    parser.add_argument("--diagnostics", action="store_true", help="rows say how linear the network was, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = measure(scenario(given.rounds, given.clients, given.width, given.diagnostics), Path(folder))
        last = (Path(folder) / "log.txt").read_text().splitlines()[-1:]
    print(
        f"{given.rounds} rounds x {given.clients} clients, width {given.width}: exit code {seen.code}, {seen.rows} rows"
    )
    print(
        f"{seen.seconds:.0f} s, disk {seen.disk:.0f} MiB at most, all processes {seen.together:.0f} MiB at most {last}"
    )
    kinds = sorted({kind for kind, _ in seen.busy})
    print("processor seconds an update:", ", ".join(f"{kind} {seen.each(kind):.3f}" for kind in kinds))
    for kind, peaks in seen.peaks.items():
        shown = ", ".join(f"{round}: {peaks[round]:.0f}" for round in sorted(peaks)[:: max(1, len(peaks) // 8)])
        print(f"{kind:7} MiB by round {shown}; slope after round {SETTLED} {seen.slope(kind):.2f} MiB a round")


if __name__ == "__main__":
    main()
