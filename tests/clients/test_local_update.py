import pytest
import torch
from torch import nn

from clients.config import ClientConfig, DataConfig, ModelConfig, PartitionConfig, TrainingConfig
from clients.data.partition import split_data
from clients.local_update import load_targets, local_update, make_model

FACTORY = """
import torch.nn as nn
def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))
"""


def config(**sections):
    base = {
        "seed": 3,
        "clients": 2,
        "data": DataConfig(public=50, test=50),
        "partition": PartitionConfig(images=6),
        "model": ModelConfig(width=16),
        "training": TrainingConfig(epochs=2, batch_size=4),
    }
    return ClientConfig(**{**base, **sections})


def update(settings, client=0, round=1):
    data = split_data(settings.data, settings.partition, settings.clients, settings.seed)
    received = make_model(settings, data).state_dict()
    return received, local_update(settings, received, round, client)


def test_an_update_trains_on_the_clients_own_images_only():
    received, first = update(config())
    _, other = update(config(), client=1)
    assert first.num_images == 6 and first.report.steps == 4
    assert not torch.equal(first.state["1.weight"], received["1.weight"])
    assert not torch.equal(first.state["1.weight"], other.state["1.weight"])


def test_rounds_shuffle_differently_and_repeat_exactly():
    states = [update(config(), round=round)[1].state["1.weight"] for round in (1, 1, 2)]
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])


def test_dropout_repeats_too_and_leaves_the_global_generator_alone(tmp_path):
    (tmp_path / "net.py").write_text(FACTORY)
    settings = config(model=ModelConfig(name=f"{tmp_path / 'net.py'}:make"))
    before = torch.get_rng_state()
    first, second = (update(settings)[1].state["1.weight"] for _ in range(2))
    assert torch.equal(first, second) and torch.equal(before, torch.get_rng_state())


def test_targets_follow_the_loss():
    settings = config()
    data = split_data(settings.data, settings.partition, settings.clients, settings.seed)
    labels = torch.tensor([3, 4])
    assert load_targets(settings, data.task, labels).tolist() == [3, 4]
    coded = load_targets(config(training=TrainingConfig(loss="mse")), data.task, labels)
    assert coded.shape == (2, 10) and coded[0, 3] == pytest.approx(0.9) and coded[0, 0] == pytest.approx(-0.1)


def test_the_received_checkpoint_has_to_fit():
    with pytest.raises(RuntimeError):
        local_update(config(), nn.Linear(2, 2).state_dict(), 1, 0)
