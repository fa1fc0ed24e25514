"""What `Record` costs a federation: `python -m tests.benchmarks.recording`. Some minutes, and 1.5 GB of the disk.

Ten clients train a network of 10 MB for one epoch over 1,000 small images. On few cores clients, server and writer
share them, so the difference is what the writer computes; where the clients are elsewhere, it is hidden behind them.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from simulator.audit.record import Record
from tests.benchmarks import stranger

WIDTH = 3300  # 10.5 MB
CLIENTS, ROUNDS, TURNS = 10, 3, 3


class Timed(FedAvg):
    """Notes when its rounds begin."""

    def __init__(self, clients: int):
        super().__init__(fraction_evaluate=0.0, min_available_nodes=clients)
        self.rounds: list[float] = []

    def configure_train(self, *args, **options):
        self.rounds.append(time.perf_counter())
        return super().configure_train(*args, **options)


def measure(folder: Path, clients: int = CLIENTS, rounds: int = ROUNDS, width: int = WIDTH) -> tuple[float, float]:
    """(seconds of a round alone, with Record around the strategy), medians, in turns, without the first of each."""
    alone, recorded = [], []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        for turn in range(TURNS):
            for found in (alone, recorded) if turn % 2 else (recorded, alone):
                strategy = own = Timed(clients)
                if found is recorded:
                    strategy = Record(own, folder / str(turn))
                strategy.start(grid, ArrayRecord(stranger.net(width).state_dict()), num_rounds=rounds)
                own.rounds.append(time.perf_counter())
                found.extend(np.diff(own.rounds)[1:])

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, stranger.app, num_supernodes=clients, backend_config=resources)
    return float(np.median(alone)), float(np.median(recorded))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        alone, recorded = measure(Path(folder))
    print(f"a round of {CLIENTS} clients and 10 MB: {alone:.2f} s alone, {recorded:.2f} s with Record: ", end="")
    print(f"{recorded / alone - 1:+.1%}")


if __name__ == "__main__":
    main()
