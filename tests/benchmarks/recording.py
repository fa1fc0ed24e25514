"""What `Record` costs a federation: `python -m tests.benchmarks.recording`. A minute or two, and 0.6 GB of the disk.

Ten clients train a network of 10 MB for one epoch over 1,000 small images. On few cores clients, server and writer
share them, so the difference is what the writer computes; where the clients are elsewhere, it is hidden behind them.
"""

import contextlib
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from simulator.audit.messages import ServerRound
from simulator.audit.record import Record
from tests.benchmarks import stranger

WIDTH = 3300  # 10.5 MB
CLIENTS, ROUNDS = 10, 5


class Timed(FedAvg):
    """Notes the processor seconds of this process and all below it, Ray's included, when a round begins."""

    def __init__(self, clients: int):
        super().__init__(fraction_evaluate=0.0, min_available_nodes=clients)
        self.spent: list[float] = []

    def configure_train(self, *args, **options):
        self.spent.append(processor_seconds())
        return super().configure_train(*args, **options)


def processor_seconds() -> float:
    """Of this process and of all that it has started. Seconds of the clock would measure who else computes here."""
    parents, seconds = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # a process that has ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            seconds[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    ours, found = [os.getpid()], 0.0
    while ours:
        process = ours.pop()
        found += seconds[process]
        ours += [child for child, parent in parents.items() if parent == process]
    return found


def timed(record: Record) -> list[float]:
    """The processor seconds of the thread that writes, by round, as they come."""
    writer, seconds = record.recorder.writer, []
    write = writer.write

    def call(seen: ServerRound) -> None:
        start = time.thread_time()
        write(seen)
        seconds.append(time.thread_time() - start)

    vars(writer)["write"] = call
    return seconds


def measure(folder: Path, clients: int = CLIENTS, rounds: int = ROUNDS, width: int = WIDTH) -> tuple[float, float]:
    """(processor seconds of a round, those of it in which the recording is written), medians without the first."""
    found = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(clients)
        record = Record(strategy, folder / "recorded")
        writing = timed(record)
        record.start(grid, ArrayRecord(stranger.net(width).state_dict()), num_rounds=rounds)
        strategy.spent.append(processor_seconds())
        found.append((float(np.median(np.diff(strategy.spent)[1:])), float(np.median(writing[1:]))))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, stranger.app, num_supernodes=clients, backend_config=resources)
    return found[0]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, writing = measure(Path(folder))
    what = f"processor seconds of a round of {CLIENTS} clients and 10 MB"
    print(f"{what}: {whole:.2f}, of which recording {writing:.2f}: {writing / whole:.1%}")


if __name__ == "__main__":
    main()
