"""Noise of central differential privacy against what one client can change, as measured on what is released."""

import math

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from simulator.run.central_dp import FittedNoise

ENTRIES = 40_000
NORM, MULTIPLIER = 0.5, 0.8


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):  # of this process: a message names its sender
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    def __init__(self, count):
        self.count = count

    def get_node_ids(self):
        return list(range(1, self.count + 1))


def released(strategy, images, moving=None, asked=None):
    """The global checkpoint after a round from zeros, in which client `moving` alone moves, by NORM in all."""
    inner = strategy.flower.strategy
    inner.min_available_nodes = inner.min_train_nodes = 1
    sent = ArrayRecord({"w": torch.zeros(ENTRIES)})
    messages = list(strategy.configure_train(1, sent, ConfigRecord({}), Grid(asked or len(images))))
    replies = []
    for client, (message, count) in enumerate(zip(messages, images, strict=False)):  # of those asked, some stay silent
        # the others stand almost still: Flower's clipping divides by the norm of an update
        value = torch.full((ENTRIES,), NORM / math.sqrt(ENTRIES) if client == moving else 1e-12)
        content = {"arrays": ArrayRecord({"w": value}), "metrics": MetricRecord({"num-examples": count})}
        replies.append(Message(content=RecordDict(content), reply_to=message))
    np.random.seed(0)
    arrays, _ = strategy.aggregate_train(1, replies)
    return arrays.to_torch_state_dict()["w"].double()


def strategy(clipping, images, asked=None, **options):
    return FittedNoise(FedAvg(fraction_evaluate=0.0), MULTIPLIER, NORM, asked or len(images), clipping, **options)


@pytest.mark.parametrize("clipping", ["server", "client"])
@pytest.mark.parametrize(
    ("images", "asked"),
    [([8, 8, 8, 8], 4), ([40, 10, 10, 10, 10], 5), ([8, 8], 4), ([30, 1], 6)],
    ids=["all alike", "one client has half of the data", "half of the replies are missing", "both"],
)
def test_noise_covers_what_any_client_can_change(clipping, images, asked):
    made = strategy(clipping, images, asked)
    nobody = released(made, images, asked=asked)
    changes = [float((released(made, images, i, asked) - nobody).norm()) for i in range(len(images))]
    noise = float(nobody.std())
    assert noise / max(changes) == pytest.approx(MULTIPLIER, rel=0.02)  # as the accountant assumes, for the heaviest


def test_by_secret_coins_neither_weights_nor_numbers_scale_what_is_released():
    for images in ([8, 8], [30, 1], [5, 5, 5]):
        made = strategy("server", images, expected_clients=4.0)
        nobody = released(made, images)
        changes = [float((released(made, images, i) - nobody).norm()) for i in range(len(images))]
        assert changes == pytest.approx([NORM / 4] * len(images), rel=1e-3)
        assert float(nobody.std()) == pytest.approx(MULTIPLIER * NORM / 4, rel=0.02)


def test_a_round_in_which_no_coin_chose_a_client_releases_noise_of_the_same_size():
    made = strategy("server", [8], expected_clients=4.0)
    assert float(released(made, [], asked=1).std()) == pytest.approx(MULTIPLIER * NORM / 4, rel=0.02)
