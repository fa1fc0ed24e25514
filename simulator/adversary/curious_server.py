"""The honest-but-curious server, as a Flower strategy around any other: it sees every checkpoint sent and returned."""

from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from attacks.interface.torch_tools import derive_seed
from simulator.adversary.recorder import CellRecorder
from simulator.adversary.reply import ClientReply, Participation
from simulator.adversary.statistics import ARRAYS, Aggregate, Messages, Wrapped, in_types_of
from simulator.results.keys import ALL
from simulator.scenario.sections import WEIGHT


class CuriousServer(Wrapped):
    """Outermost wrapper: before any aggregation, it reads, notes and records each reply."""

    def __init__(
        self,
        strategy: Strategy,
        participation: Participation,
        recorder: CellRecorder,
        note: Callable[[int, ClientReply], None],
    ):
        """note: called with the round and each reply, whether it is healthy or not."""
        super().__init__(strategy)
        self.participation, self.recorder, self.note = participation, recorder, note

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        if server_round == 1:
            self.recorder.begin(arrays.to_torch_state_dict())
        messages = self.strategy.configure_train(server_round, arrays, config, self.participation.grid(grid))
        return self.participation.readdress(server_round, list(messages))

    def aggregate_train(self, server_round: int, replies: Messages) -> Aggregate:
        read = self.participation.read(replies)
        for reply in read:
            self.note(server_round, reply)
            self.recorder.save_reply(server_round, reply)
        self.participation.check_failures(server_round, read)
        healthy = tuple(reply.client for reply in read if reply.healthy)
        messages = [reply.message for reply in read if reply.healthy and reply.message is not None]
        summed = None
        # the sum is all that the server sees of a round; it is taken first, as strategies may write into replies
        if self.recorder.hides_clients and messages:
            mean = aggregate_arrayrecords([reply.content for reply in messages], WEIGHT)
            mean = in_types_of(messages[0].content.array_records[ARRAYS], mean)
            summed = self.recorder.note_sum(server_round, mean.to_torch_state_dict())
        seed = derive_seed(self.recorder.cell.scenario.seed, "aggregation", server_round, ALL)
        np.random.seed(seed % 2**32)  # Flower's DP draws from the global generator
        arrays, metrics = self.strategy.aggregate_train(server_round, messages)
        final = None
        if arrays is not None:
            final = self.recorder.note_global(server_round, arrays.to_torch_state_dict())
        self.recorder.end_round(server_round, healthy, final, summed)
        return arrays, metrics
