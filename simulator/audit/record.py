"""`Record`: two lines in anybody's Flower app write down what its server sees.

    from fedspill import Record
    strategy = Record(FedAvg(...), "runs/mine")

The federation comes first: whatever goes wrong here is logged, noted under `problems` of the recording, and over.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from attacks.interface.errors import InputError
from simulator.audit.writer import RecordingWriter
from simulator.run.wrapped import Wrapped

OWN = ("strategy", "writer", "_configure", "_aggregate")  # attributes that are not the strategy's


class Record(Wrapped):
    """Around any strategy of Flower's Message API, which trains as it would alone, attributes and methods included.

    Checkpoints and what threat models see of them go to a folder, for `fedspill audit`. A recording that is there
    already is kept beside it as `NAME.previous`.
    """

    def __init__(
        self,
        strategy: Strategy,
        path: str | Path,
        *,
        keep_rounds: int | None = None,
        clients: Collection[int] | None = None,
        keep_free: float = 1.0,
    ):
        """keep_rounds: how many of the last rounds to keep, default all. clients: numbers of those to keep, counted in
        the order in which they are first asked, default all. keep_free: gigabytes of the disk that stay free. Raises
        InputError for options that make no sense, and for a folder that is no recording's: before any training.
        """
        if not isinstance(strategy, Strategy):
            kind = f"{type(strategy).__module__}.{type(strategy).__name__}"
            raise InputError(
                f"Record takes a strategy of flwr.serverapp.strategy, this is a {kind}: use the Message API"
            )
        if keep_rounds is not None and keep_rounds < 1:
            raise InputError(f"Record: keep_rounds is {keep_rounds}, it has to be at least 1, or None for all")
        if clients is not None and not all(isinstance(client, int) and client >= 0 for client in clients):
            raise InputError(f"Record: clients is {clients}, it has to hold numbers from 0")
        super().__init__(strategy)
        self.writer = RecordingWriter(Path(path), strategy, keep_rounds, clients, int(keep_free * 1e9))
        self._configure, self._aggregate = strategy.configure_train, strategy.aggregate_train

    def start(self, *args: Any, **options: Any) -> Result:
        """The strategy's own `start`, which may be one of the user's: what it calls of itself is recorded."""
        hooks = {"configure_train": self.configure_train, "aggregate_train": self.aggregate_train}
        own = vars(self.strategy)
        before = {name: own[name] for name in hooks if name in own}
        own.update(hooks)
        try:
            return self.strategy.start(*args, **options)
        finally:
            for name in hooks:
                del own[name]
            own.update(before)
            self.writer.finish()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self._configure(server_round, arrays, config, grid))
        self.writer.sent(server_round, arrays, messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self.writer.returned(replies)  # first: strategies may write into replies
        arrays, metrics = self._aggregate(server_round, replies)
        self.writer.ended(arrays)
        return arrays, metrics

    def __getattr__(self, name: str) -> Any:
        if name in OWN:  # not there yet: while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OWN:
            super().__setattr__(name, value)
        else:
            setattr(self.strategy, name, value)
