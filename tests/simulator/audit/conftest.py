"""A federation without Flower's machinery: messages built by hand, clients that are functions."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedspill import Record


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):  # of this process: a message names its sender
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Nodes that answer at once, by `answer(message)`, which returns the content of a reply, or None for an error."""

    def __init__(self, answer, nodes=(30, 10, 20)):
        self.answer, self.nodes = answer, list(nodes)

    def get_node_ids(self):
        return self.nodes

    def send_and_receive(self, messages, timeout=None):
        return [self.reply(message) for message in messages]

    def reply(self, message):
        content = self.answer(message)
        if content is None:
            return Message(Error(code=2, reason="the client raised"), reply_to=message)
        return Message(RecordDict(content), reply_to=message)


def trained(message, images=8, key="arrays", **metrics):
    """The content of a reply: all that was sent, moved by a hundredth of the node's number."""
    sent = message.content.array_records[key].to_torch_state_dict()
    moved = {name: value + message.metadata.dst_node_id / 100 for name, value in sent.items()}
    return {key: ArrayRecord(moved), "metrics": MetricRecord({"num-examples": images, **metrics})}


def checkpoint(value=0.0, entries=5):
    return ArrayRecord({"layer.weight": torch.full((2, entries), value), "layer.bias": torch.full((2,), value)})


def by_hand(strategy, rounds, answer=trained, arrays=None, grid=None):
    """The rounds of `Strategy.start`, without its log; returns the last global checkpoint, when all is written."""
    arrays = rounds_of(strategy, rounds, answer, arrays, grid)
    if isinstance(strategy, Record):
        strategy.finish()
    return arrays


def rounds_of(strategy, rounds, answer=trained, arrays=None, grid=None):
    """The same, of a federation that has not ended."""
    grid = grid or Grid(answer)
    arrays = arrays or checkpoint()
    for number in range(1, rounds + 1):
        replies = grid.send_and_receive(strategy.configure_train(number, arrays, ConfigRecord({}), grid))
        arrays = strategy.aggregate_train(number, replies)[0] or arrays
    return arrays
